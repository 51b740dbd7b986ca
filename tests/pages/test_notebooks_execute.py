import sys
from concurrent.futures import ThreadPoolExecutor

import execute as execute_module
import nbformat
import pytest
from execute import execute, main
from pairing import chapters, problems

from attnid.__main__ import main as command
from pages.test_pairing import SOURCE


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


def test_executing_prints_nothing(tmp_path, capfd):
    (tmp_path / "01_pair.py").write_text(SOURCE)
    execute("01_pair", tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "words, wanted",
    [(["5"], ["05"]), (["1", "06"], ["01", "06"]), (["10"], ["10"]), (["05_many"], ["05"])],
)
def test_a_chapters_number_may_lack_its_zero(monkeypatch, capsys, words, wanted):
    monkeypatch.setattr(execute_module, "execute", lambda chapter: chapter)
    monkeypatch.setattr(execute_module, "ProcessPoolExecutor", ThreadPoolExecutor)
    main(words)
    assert [
        line.removeprefix("notebooks/")[:2] for line in capsys.readouterr().out.splitlines()
    ] == wanted


@pytest.mark.parametrize("prefixes", [["99"], ["01", "99"]])
def test_prefix_of_no_chapter_is_an_error(prefixes):
    with pytest.raises(SystemExit, match=f"'99'.*{', '.join(chapters())}"):
        main(prefixes)


@pytest.mark.parametrize(
    "words", ["bogus", "measure 1", "plain", "plain 3", "plain 3 x", "plain 3 0", "plain 3 4 5"]
)
def test_wrong_words_on_the_command_line_are_a_usage_error(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["attnid", "bench", *words.split()])
    with pytest.raises(SystemExit) as refusal:
        command()
    assert refusal.value.code == 2 and "usage: python -m attnid " in capsys.readouterr().err
