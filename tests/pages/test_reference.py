"""The reference of the package: every public name is there, with words."""

import doctest
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import built as pages
import docstrings
import pytest
from pairing import chapters

import attnid

BOOK = Path(docstrings.__file__).parent
PAGE = (BOOK / "reference.md").read_text()
NAMED = re.findall(r"^\.\. auto\w+:: attnid\.(\S+)$", PAGE, re.M)


def modules():
    """Every module of the package but its commands."""
    found = pkgutil.walk_packages(attnid.__path__, "attnid.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def test_every_public_name_is_on_the_page_once():
    public = set(attnid.__all__) - {"claims", "figures"}
    assert public - set(NAMED) == set() and len(set(NAMED)) == len(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_what_is_on_the_page_is_there_and_has_words(name):
    module, _, last = f"attnid.{name}".rpartition(".")
    subject = getattr(import_module(module), last)
    assert len(subject.__doc__.split()) >= 5


@pytest.mark.parametrize("name", sorted(set(attnid.__all__) - {"claims", "figures"}))
def test_it_shows_how_a_name_is_used(name):
    assert ">>> " in getattr(attnid, name).__doc__


@pytest.mark.parametrize("module", modules())
def test_examples_show_what_the_code_says(module):
    results = doctest.testmod(import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0


@pytest.mark.parametrize("chapter", chapters())
def test_code_of_a_chapter_leads_to_it(site, chapter):
    page = pages.soup(site / "notebooks" / f"{chapter}.html")
    links = {a["href"] for a in page.select("a.sphinx-codeautolink-a")}
    assert len([link for link in links if "book/reference.html#attnid." in link]) >= 3


def test_the_glossary_leads_to_it(site):
    glossary = pages.soup(site / "book" / "glossary.html")
    said = re.findall(r"{py:\w+}`", (BOOK / "glossary.md").read_text())
    links = [
        a for a in glossary.select("article a") if "reference.html#attnid." in a.get("href", "")
    ]
    assert len(links) == len(said) > 10


def test_a_docstring_is_read_as_prose():
    lines = ["First `a * b`, then 2 * 3.", "", "x: one", "    and more", "y_: two", ""]
    example = [">>> f_(2 * 3)", "6", ""]
    lines += example
    docstrings.read_as_prose(None, "function", "f", None, {}, lines)
    prose = ["First ``a * b``, then 2 \\* 3.", "", "- x: one and more", "- y\\_: two", ""]
    assert lines == prose + example
