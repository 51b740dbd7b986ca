"""The documents beside the book: they name the repository that _config.yml names, and are whole."""

import re

import pdf
import plain
import pytest
import yaml
from first_cell import repository
from pairing import NOTEBOOKS

from attnid import __main__ as command

ROOT = NOTEBOOKS.parent


def test_the_citation_file_is_valid_and_names_the_repository():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation) and citation[
        "cff-version"
    ] == "1.2.0"
    assert citation["repository-code"] == repository()[0] and citation["license"] == "MIT"
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[
        1
    ]
    assert citation["version"] == version


def test_the_readme_has_a_colab_button_for_each_chapter():
    url, branch = repository()
    start = f"https://colab.research.google.com/github/{url.removeprefix('https://github.com/')}/blob/{branch}/"
    buttons = re.findall(
        re.escape("https://colab.research.google.com/") + r"[^)\s]*",
        (ROOT / "README.md").read_text(),
    )
    assert buttons == [f"{start}book/colab/{page}.ipynb" for page in plain.chapters()]


@pytest.mark.parametrize(
    "line",
    re.findall(
        r"^\.venv/bin/python -m attnid (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE
    ),
)
def test_a_command_of_the_readme_is_one(monkeypatch, capsys, line):
    for name in (
        "train_or_sweep",
        "print_account",
        "print_pair",
    ):  # long, and their words are read before
        monkeypatch.setattr(command, name, lambda arguments: 0)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["attnid", *line.split()])
    assert command.main() == 0 and (
        "gpt2 (gpt2), 12 attention layers" in capsys.readouterr().out
    ) == line.startswith("count ")


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".pre-commit-config.yaml"])
def test_a_configuration_can_be_read(name):
    assert yaml.safe_load((ROOT / name).read_text())


def test_every_file_that_the_hooks_and_the_workflow_name_exists():
    text = "".join(
        (ROOT / name).read_text()
        for name in (".github/workflows/ci.yml", ".pre-commit-config.yaml")
    )
    assert [
        path
        for path in re.findall(r"\b(?:tests|notebooks|book)/\w+\.py", text)
        if not (ROOT / path).exists()
    ] == []


def test_without_a_browser_there_is_no_pdf_but_a_reason(monkeypatch):
    monkeypatch.delenv("ATTNID_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="no PDF: none of chromium, .* is installed"):
        pdf.main()
