"""The plain twins are in step with their chapters, have the numbers of the built book, and are what its Colab buttons open."""

import re
import subprocess
from urllib.parse import unquote

import build as book
import built as pages
import numbering
import plain
import pytest
from first_cell import repository
from numbering import Target

COLAB = "https://colab.research.google.com"
PAGE = "notebooks/01_this"


@pytest.mark.parametrize("page", plain.chapters())
def test_the_twin_is_in_step(page):
    assert (plain.FOLDER / f"{page}.ipynb").read_text(encoding="utf-8") == plain.plain(page)


def test_there_is_no_other_twin():
    assert sorted(plain.FOLDER.rglob("*.ipynb")) == [
        plain.FOLDER / f"{page}.ipynb" for page in plain.chapters()
    ]


@pytest.mark.slow
def test_every_number_is_that_of_the_built_book(site):
    """Both ways: the book numbers nothing that the sources' count leaves out."""
    theirs = {
        label: text for page in pages.pages(site) for label, text in pages.numbers(page).items()
    }
    assert theirs == {
        label: target.text for label, target in numbering.targets().items() if target.text
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", plain.chapters())
def test_works_are_cited_as_in_the_built_book(site, page):
    roles = [
        found
        for text, _ in numbering.pieces(page)
        for found in plain.ROLE.finditer(text)
        if found["name"].startswith("cite")
    ]
    ours = [
        re.sub(r"\[(.*?\]?)\]\([^)]*\)", r"\1", plain.role(found, page)).replace("*", "")
        for found in roles
    ]
    assert ours == pages.citations(site / f"{page}.html")


def tracked(path):
    """Whether git has the file, or would take it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", path]
    return (
        subprocess.run(command, cwd=book.ROOT, capture_output=True, text=True).stdout.strip()
        == path
    )


@pytest.mark.slow
def test_each_chapter_has_a_colab_button_and_each_button_opens_a_tracked_notebook(site):
    url, branch = repository()
    start = f"{COLAB}{url.removeprefix('https://github.com').join(('/github', ''))}/blob/{branch}/"
    for page in numbering.pages():
        buttons = {link for link in pages.links(site / f"{page}.html") if link.startswith(COLAB)}
        expected = {f"{start}book/colab/{page}.ipynb"} if page in plain.chapters() else set()
        assert buttons == expected and all(
            tracked(unquote(link.removeprefix(start))) for link in buttons
        ), page


@pytest.fixture
def few_labels(monkeypatch):
    labels = {
        "lem-a": Target("Lemma 3", PAGE),
        "lem-b": Target("Lemma 4", "notebooks/02_that"),
        "fig-a": Target("Fig. 2", PAGE),
        "eq-a": Target("(5)", PAGE),
        "ledger-a": Target(None, "book/ledger"),
    }
    monkeypatch.setattr(plain, "targets", lambda: labels)
    monkeypatch.setattr(plain, "title", lambda page: f"Title of {page}")
    monkeypatch.setattr(plain, "repository", lambda: ("https://example.org/r", "main"))


def converted(text):
    return "\n".join(plain.plain_lines(text.split("\n"), PAGE))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("by {prf:ref}`lem-a`, {numref}`fig-a` and {eq}`eq-a`", "by Lemma 3, Fig. 2 and (5)"),
        (
            "{prf:ref}`lem-b`",
            "[Lemma 4](https://example.org/r/blob/main/book/colab/notebooks/02_that.ipynb)",
        ),
        (
            "{ref}`a row\nof it <ledger-a>`",
            "[a row of it](https://example.org/r/blob/main/book/ledger.md)",
        ),
        (
            "{doc}`02_that`",
            "[Title of notebooks/02_that](https://example.org/r/blob/main/book/colab/notebooks/02_that.ipynb)",
        ),
        (
            "[](../book/notation.md)",
            "[Title of book/notation](https://example.org/r/blob/main/book/notation.md)",
        ),
        ("$$\nx\n$$ (eq-a)\nthen", "$$\nx\n\\tag{5}\n$$\nthen"),
        ("(ledger-a)=\n## Place", "\n## Place"),
        ("```python\nx = {1: `2`}\n```", "```python\nx = {1: `2`}\n```"),
        (
            "see\n\n```{prf:lemma} A *name*\n:label: lem-a\n\nIt is so.\n```\n\nand",
            "see\n\n<blockquote>\n\n**Lemma 3** (A *name*)\n\nIt is so.\n\n</blockquote>\n\nand",
        ),
        (
            "````{prf:proof}\nof {prf:ref}`lem-a`:\n```\ncode\n```\n````",
            "*Proof.* of Lemma 3:\n```\ncode\n```\n\n∎",
        ),
        (
            "```{admonition} Answer\n:class: dropdown\n\nNo.\n```",
            "<details>\n<summary>Answer</summary>\n\nNo.\n\n</details>",
        ),
        (":::{note}\nYes.\n:::", "<blockquote>\n\n**Note**\n\nYes.\n\n</blockquote>"),
    ],
)
def test_plain_form(few_labels, text, expected):
    assert converted(text) == expected


def test_a_row_of_the_ledger_is_reached_by_its_heading_as_github_spells_it(few_labels, monkeypatch):
    text = "# Ledger\n\n(other)=\n## Lemma 4.1, section 4\n\n## Lemma 4.1, section 4\n\n(ledger-a)=\n## Lemma 4.1, section 4\n\ntext\n"
    monkeypatch.setattr(plain, "pieces", lambda page: [(text, None)])
    monkeypatch.setattr(plain, "anchors", plain.anchors.__wrapped__)
    assert (
        converted("{ref}`row <ledger-a>`")
        == "[row](https://example.org/r/blob/main/book/ledger.md#lemma-41-section-4-2)"
    )


def test_each_link_of_a_twin_to_a_row_of_the_ledger_has_its_anchor():
    rows = [label for label, target in numbering.targets().items() if label.startswith("ledger-")]
    assert rows and len({plain.anchors("book/ledger")[label] for label in rows}) == len(rows)
    for page in plain.chapters():
        wanted = [
            found
            for text, _ in numbering.pieces(page)
            for found in re.findall(r"{ref}`[^`]*<ledger-", text)
        ]
        links = re.findall(r"ledger\.md(#?)[\w-]*\)", plain.plain(page))
        assert wanted and links.count("#") == len(wanted), page


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{prf:ref}`lem-z`", "label=lem-z"),
        ("{ref}`ledger-a`", "ref=ledger-a"),
        ("{cite:t}`nobody1900`", "cite=nobody1900"),
        ("{abbr}`x`", "role=abbr"),
        ("```{iframe} x\n```", "directive=iframe"),
        ("```{prf:lemma} x\n:label: lem-z\n```", "label=lem-z"),
    ],
)
def test_what_has_no_plain_form_is_an_error(few_labels, text, problem):
    with pytest.raises(ValueError, match=problem):
        converted(text)


def test_numbers_count_each_kind_by_itself(tmp_path, monkeypatch):
    texts = {
        "a": "# A\n```{prf:lemma}\n:label: l1\n```\n```{prf:remark} t\n:label: r1\n```\n$$\nx\n$$ (e1)",
        "b": "# B\n:::{prf:lemma} t\n:label: l2\n:::",
    }
    monkeypatch.setattr(numbering, "pages", lambda: list(texts))
    monkeypatch.setattr(
        numbering,
        "pieces",
        lambda page: [(texts[page], None), ("", {"name": f"fig-{page}", "caption": ""})],
    )
    found = numbering.targets.__wrapped__()
    assert {label: target.text for label, target in found.items()} == {
        "l1": "Lemma 1",
        "r1": "Remark 1",
        "e1": "(1)",
        "l2": "Lemma 2",
        "fig-a": "Fig. 1",
        "fig-b": "Fig. 2",
    }
    assert found["l2"].page == "b"


def test_a_label_given_twice_is_an_error(monkeypatch):
    monkeypatch.setattr(numbering, "pages", lambda: ["a", "b"])
    monkeypatch.setattr(numbering, "pieces", lambda page: [("", {"name": "fig-x", "caption": ""})])
    with pytest.raises(ValueError, match="label=fig-x: on both a and b"):
        numbering.targets.__wrapped__()
