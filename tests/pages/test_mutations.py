"""Every row of the ledger has a check that fails when an ingredient is replaced, as the book's page says."""

import mutations
import pytest

from attnid.claims import LEDGER

PAGE = (mutations.BOOK / "mutations.md").read_text(encoding="utf-8")


FIRST = list({mutation.row: mutation for mutation in reversed(mutations.MUTATIONS)}.values())


@pytest.mark.parametrize("mutation", FIRST, ids=lambda m: f"{m.row}-{m.check}")
def test_the_check_fails_as_the_page_says(mutation):
    assert mutations.line(mutation, mutations.failure(mutation)) in PAGE


@pytest.mark.parametrize("chapter", sorted(set(mutations.CHAPTER.values())))
def test_the_page_is_of_the_chapter_as_it_is(chapter):
    assert mutations.made_from(chapter) in PAGE


def test_every_row_has_one():
    run = [claim.id for claim in LEDGER if claim.checks]
    assert set(run) - {mutation.row for mutation in mutations.MUTATIONS} == set()


def test_a_replacement_that_changes_nothing_is_found_out():
    harmless = mutations.Mutation("ex-4.1", "formula", "nothing", old="layer", new="layer")
    with pytest.raises(AssertionError, match="survives"):
        mutations.failure(harmless)
