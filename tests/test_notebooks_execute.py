import nbformat
import pytest

from execute import execute
from pairing import problems
from test_pairing import SOURCE


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "01_pair.py").write_text(SOURCE)
    execute("01_pair", tmp_path)
    return tmp_path


def test_an_executed_chapter_is_a_sound_pair(folder):
    assert problems("01_pair", folder) == []
    assert nbformat.read(folder / "01_pair.ipynb", as_version=4).cells[1].outputs[0].text == "2\n"


def test_executing_twice_changes_nothing(folder):
    before = (folder / "01_pair.ipynb").read_bytes()
    execute("01_pair", folder)
    assert (folder / "01_pair.ipynb").read_bytes() == before
    assert (folder / "01_pair.py").read_text() == SOURCE


def test_an_edit_moves_no_other_cells_id(folder):
    before = [cell.id for cell in nbformat.read(folder / "01_pair.ipynb", as_version=4).cells]
    (folder / "01_pair.py").write_text(SOURCE.replace("1 + 1", "1 + 2") + "\n# %%\nprint(1 + 1)\n")
    execute("01_pair", folder)
    after = nbformat.read(folder / "01_pair.ipynb", as_version=4).cells
    assert [after[0].id, after[2].id] == before and after[1].id not in before
    assert after[1].outputs[0].text == "3\n"


def test_a_failing_chapter_leaves_the_last_notebook_whole(folder):
    before = (folder / "01_pair.ipynb").read_bytes()
    (folder / "01_pair.py").write_text(SOURCE + "\n# %%\nraise ValueError('no')\n")
    with pytest.raises(Exception, match="ValueError"):
        execute("01_pair", folder)
    assert (folder / "01_pair.ipynb").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["01_pair.ipynb", "01_pair.py"]
