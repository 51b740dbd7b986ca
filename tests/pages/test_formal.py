"""The formal twins: each statement that has one shows it, and the page says what the files say."""

import re

import formal
import pytest
from bs4 import BeautifulSoup
from pairing import NOTEBOOKS

CHAPTERS = sorted(NOTEBOOKS.glob("[0-9]*_*.py"))
LABELS = {
    label: chapter.stem
    for chapter in CHAPTERS
    for label in re.findall(r"^# :label: (\S+)", chapter.read_text(), re.M)
}


def test_the_page_is_that_of_the_proofs():
    assert (formal.BOOK / "formal.md").read_text() == formal.page()


def test_each_twin_names_a_statement_of_its_chapter():
    wrong = [
        (name, item)
        for name, row in formal.rows().items()
        for item in row["items"]
        if item not in LABELS
    ]
    assert wrong == [] and len(formal.by_item()) >= 24


@pytest.mark.parametrize("item", sorted(formal.by_item()))
def test_each_statement_shows_its_twins(site, item):
    page = site / "notebooks" / f"{LABELS[item]}.html"
    box = BeautifulSoup(page.read_text(), "html.parser").find(id=item).find(class_="formal")
    shown = " ".join(box.get_text().split())
    for name in formal.by_item()[item]:
        assert " ".join(formal.formal_texts()[name].split()) in shown
