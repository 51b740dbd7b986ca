"""The first cell of the chapters: the same in all of them, and it works, with a stand-in for Colab and this checkout for the repository."""

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml
from first_cell import first_cell, repository, with_first_cell
from pairing import NOTEBOOKS, chapters, read_source

from pages import test_pairing

ROOT = NOTEBOOKS.parent
SHORT = "07_wider_heads"
PYTHONS = ("3.11", "3.12", "3.13")
OURS = (
    ".git",
    ".venv",
    "_build",
    ".*cache",
    ".hypothesis",
    "*.egg-info",
    "__pycache__",
    ".ipynb_checkpoints",
)
# what a reader does on Colab, outputs apart: the first cell, once more, and then every cell; google.colab is there before the first
READER = """
import json, os, sys, types
for name in ("google", "google.colab"):
    sys.modules[name] = types.ModuleType(name)
cells = ["".join(cell["source"]) for cell in json.load(open(sys.argv[1]))["cells"] if cell["cell_type"] == "code"]
book = {"__name__": "__main__"}
for cell in [cells[0].replace(sys.argv[2], sys.argv[3]), *cells]:
    exec(cell, book)
import attnid, torch
print(json.dumps([attnid.__file__, torch.__file__, os.getcwd()]))
"""


@pytest.mark.parametrize("chapter", chapters())
def test_every_chapter_begins_with_it(chapter):
    cell = read_source(NOTEBOOKS / f"{chapter}.py").cells[0]
    expected = first_cell(), {"tags": ["remove-cell"]}
    assert (cell.source, cell.metadata) == expected, (
        f"python notebooks/first_cell.py {chapter[:2]} puts it there"
    )


def test_it_is_short_and_has_the_address_of_the_configuration():
    assert len(first_cell().splitlines()) <= 12
    assert yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"] in first_cell()


def test_elsewhere_it_does_nothing():
    script = (
        f"{first_cell()}\nassert set(globals()) - before == {{'before', 'os', 'subprocess', 'sys'}}"
    )
    subprocess.run(
        [sys.executable, "-c", f"before = set(globals())\n{script}"],
        cwd=NOTEBOOKS,
        env={"PATH": ""},
        check=True,
    )


def test_a_twin_in_a_clone_finds_the_records():
    script = (
        f"{first_cell()}\nimport pathlib\nassert next(pathlib.Path('results').rglob('*.json.xz'))"
    )
    twins = ROOT / "book" / "colab" / "notebooks"
    subprocess.run([sys.executable, "-c", script], cwd=twins, env={"PATH": ""}, check=True)


def test_it_is_put_first_and_an_older_one_is_replaced():
    source = test_pairing.SOURCE
    once = with_first_cell(source)
    cells = jupytext.reads(once, fmt="py:percent").cells
    assert [cells[0].source, cells[1].source] == [first_cell(), "# A title"]
    assert with_first_cell(once) == with_first_cell(once.replace("-q --depth 1", "--old")) == once


def run(*command, **options):
    """Run a command; a failure shows what it said."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The files of this checkout as a repository that can be cloned."""
    folder = tmp_path_factory.mktemp("public") / "repository"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*OURS))
    named = ("-c", "user.name=reader", "-c", "user.email=reader@example.org")
    for words in (
        ("init", "--quiet"),
        ("add", "--all"),
        (*named, "commit", "--quiet", "--no-verify", "--message", "all"),
    ):
        run("git", *words, cwd=folder)
    return folder


@pytest.fixture
def clean(tmp_path):
    """A fresh home and environment for a reader: this one's packages can be read, this one's attnid and the network cannot."""
    run(
        sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment"
    )  # pip is given as well
    packages = next((tmp_path / "environment").glob("lib/python*/site-packages"))
    (packages / "given.pth").write_text(
        "\n".join(site.getsitepackages())
    )  # a .pth found there is not read: attnid stays away
    shown = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # this 0 turns isolation off
    return tmp_path / "environment" / "bin" / "python", packages, shown


@pytest.mark.slow
def test_on_colab_it_installs_the_package_twice_and_the_notebook_runs(published, clean, tmp_path):
    python, packages, environment = clean
    notebook = ROOT / "book" / "colab" / "notebooks" / f"{SHORT}.ipynb"
    out = run(
        python,
        "-c",
        READER,
        notebook,
        repository()[0],
        f"file://{published}",
        cwd=tmp_path,
        env=environment,
    )
    attnid, torch, where = yaml.safe_load(out.splitlines()[-1])
    assert Path(attnid).parent == packages / "attnid" and where == str(
        tmp_path / "attnid" / "notebooks"
    )
    assert not torch.startswith(str(tmp_path))
    installed = sorted(path.name for path in packages.iterdir())
    assert installed == ["attnid", "attnid-0.1.0.dist-info", "given.pth"], (
        "it installed more than the package, or not the package"
    )
    printed = [
        o["text"]
        for c in nbformat.read(notebook, 4).cells
        if c.cell_type == "code"
        for o in c.outputs
        if o.output_type == "stream"
    ]
    assert printed and "".join(printed).strip() in out


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, published):
    """The package as pip builds it, from files alone."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, published)
    return next(folder.glob("attnid-*.whl"))


def interpreter(version):
    """An installed Python of this version, or None."""
    found = [
        shutil.which(f"python{version}"),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
    ]
    works = lambda path: (
        subprocess.run(
            [path, "-c", "import pip, sys; assert sys.version.startswith(sys.argv[1])", version],
            capture_output=True,
        ).returncode
        == 0
    )
    return next((str(path) for path in found if path and works(path)), None)


@pytest.mark.parametrize("version", PYTHONS)
def test_the_package_installs_and_compiles(wheel, version, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed here; the public CI has it")
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        tmp_path,
        wheel,
    )
    run(python, "-m", "compileall", "-q", tmp_path / "attnid")
    package = ROOT / "src" / "attnid"
    sources = [
        path.relative_to(package) for path in package.rglob("*") if "__pycache__" not in path.parts
    ]
    assert [path for path in sources if not (tmp_path / "attnid" / path).exists()] == [], (
        "the installed package lacks files"
    )
