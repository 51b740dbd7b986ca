"""The reference of the package: every public name is there, with words."""

import re
from importlib import import_module
from pathlib import Path

import docstrings
import pytest

import attnid

PAGE = Path(docstrings.__file__).with_name("reference.md").read_text()
NAMED = re.findall(r"^\.\. auto\w+:: attnid\.(\S+)$", PAGE, re.M)


def test_every_public_name_is_on_the_page_once():
    public = set(attnid.__all__) - {"claims", "figures"}
    assert public - set(NAMED) == set() and len(set(NAMED)) == len(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_what_is_on_the_page_is_there_and_has_words(name):
    module, _, last = f"attnid.{name}".rpartition(".")
    subject = getattr(import_module(module), last)
    assert len(subject.__doc__.split()) >= 5


def test_a_docstring_is_read_as_prose():
    lines = ["First `a * b`, then 2 * 3.", "", "x: one", "    and more", "y_: two", ""]
    docstrings.read_as_prose(None, "function", "f", None, {}, lines)
    assert lines == ["First ``a * b``, then 2 \\* 3.", "", "- x: one and more", "- y\\_: two", ""]
