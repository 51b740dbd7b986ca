"""The rooms of the package: which may import which, a test file for each module, the public names, and one style."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attnid

ROOT = Path(__file__).resolve().parents[1]
PROBE = """[tool.importlinter]
root_package = "attnid"
[[tool.importlinter.contracts]]
name = "upside down"
type = "layers"
layers = ["attnid.layer", "attnid.network"]
"""


def tool(name, *arguments):
    command = [Path(sys.executable).with_name(name), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_imports_point_down():
    pytest.importorskip("importlinter")
    kept = tool("lint-imports", "--no-cache", "--config", "pyproject.toml")
    assert kept.returncode == 0, kept.stdout


def test_an_import_that_points_up_is_found(tmp_path):
    pytest.importorskip("importlinter")
    (tmp_path / "pyproject.toml").write_text(PROBE)
    broken = tool("lint-imports", "--no-cache", "--config", str(tmp_path / "pyproject.toml"))
    assert broken.returncode == 1 and "attnid.network is not allowed to import" in broken.stdout


def test_one_style():
    pytest.importorskip("ruff")
    for arguments in (("format", "--check", "--diff"), ("check", "--output-format", "concise")):
        found = tool("ruff", *arguments, "src", "tests", "book")
        assert found.returncode == 0, found.stdout[-3000:]


def modules():
    """The modules of the package, without those that only make a folder a package: room/name, or name for those above the rooms."""
    package = Path(attnid.__file__).parent
    found = (path.relative_to(package).with_suffix("") for path in package.rglob("*.py"))
    return {path for path in found if path.name != "__init__"}


def test_each_module_has_a_test_file_and_each_test_file_of_a_room_a_module():
    tested = {path: path.with_name(f"test_{path.name.strip('_')}.py") for path in modules()}
    untested = [
        f"{path}.py" for path, test in tested.items() if not (ROOT / "tests" / test).is_file()
    ]
    assert not untested, "without a test file of its own"
    rooms = {path.parent for path in modules() if path.parent.name}
    there = {
        test.relative_to(ROOT / "tests")
        for room in rooms
        for test in (ROOT / "tests" / room).glob("test_*.py")
    }
    assert len(rooms) == 6 and not there - set(tested.values()), "a test file without a module"


@pytest.mark.parametrize("name", attnid.__all__)
def test_each_public_name_is_there(name):
    assert getattr(attnid, name) is getattr(attnid, name)
    assert name in dir(attnid)


def test_what_type_checkers_read_is_where_names_come_from():
    tree = ast.parse(Path(attnid.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If)).body
    read = {i.module: tuple(a.name for a in i.names) for i in block if i.module}
    assert read == attnid.HOMES


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'counts'"):
        attnid.counts
