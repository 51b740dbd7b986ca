"""The ledger holds: every row's evidence finds what it says, points somewhere, and says no more than was run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import attnid
from attnid.claims import evidence
from attnid.claims.ledger import LEDGER, STATUSES, Claim, ClaimFails, verify
from attnid.layer import counting

ROOT = Path(__file__).resolve().parents[2]
RUN = [claim for claim in LEDGER if claim.status != "not yet run"]
PAPER = (
    "section 4.1",
    "Lemma 4.1",
    "Lemma 4.2",
    "Lemma 4.3",
    "Corollary 4.4",
    "Corollary 4.5",
    "section 4.5",
    "Lemma 4.6",
    "section 4.6",
    "Fact 4.7",
    "section 4.7.2",
    "section 4.8.1",
    "Figure 1",
    "Proposition 4.8",
    "section 4.9",
    "section 4.10",
    "Lemma 5.1",
    "section 5.1",
    "section 5.2.1",
    "section 5.2.2",
    "Figure 2",
    "Figure 3",
    "Figure 4",
    "section 5.3",
)


def problems(claim):
    """What is wrong with a row, beside its evidence."""
    found = [] if claim.status in STATUSES else [f"status {claim.status!r}"]
    if claim.status == "not yet run":
        found += ["says nothing was run, and has evidence"] if claim.methods or claim.where else []
    else:
        found += (
            []
            if claim.methods and claim.where and claim.evidence
            else [f"is {claim.status} without evidence"]
        )
    found += (
        ["is corrected, but not what"] if claim.status == "corrected" and not claim.printed else []
    )
    found += (
        ["has conditions, but not which"]
        if claim.status == "confirmed with conditions" and not claim.conditions
        else []
    )
    return (
        found
        + [f"points at nothing: {place}" for place in claim.where if not exists(place)]
        + missing_items(claim)
    )


def exists(place):
    """Whether a test or a tagged notebook cell is there."""
    if "::" in place:
        file, name = place.split("::")
        return (ROOT / file).exists() and f"def {name}(" in (ROOT / file).read_text()
    chapter, tag = place.split("#")
    source = ROOT / "notebooks" / f"{chapter}.py"
    return source.exists() and tag in cell_tags(source.read_text())


def cell_tags(source):
    return {
        tag
        for tags in re.findall(r"^# %%.*\btags=\[(.*?)\]", source, re.M)
        for tag in re.findall(r'"(.*?)"', tags)
    }


def missing_items(claim):
    source = ROOT / "notebooks" / f"{claim.chapter}.py"
    text = source.read_text() if source.exists() else ""
    return [
        f"{item} is not in {claim.chapter}"
        for item in claim.items
        if f":label: {item}\n" not in text
    ]


@pytest.mark.parametrize("claim", RUN, ids=lambda claim: claim.id)
def test_each_claim_holds(claim):
    verify(claim)


@pytest.mark.parametrize("claim", LEDGER, ids=lambda claim: claim.id)
def test_each_row_is_sound(claim):
    assert problems(claim) == []


def test_every_statement_of_the_paper_has_a_row():
    assert [place for place in PAPER if not any(place in claim.paper for claim in LEDGER)] == []
    assert len({claim.id for claim in LEDGER}) == len(LEDGER) >= 24


def test_every_statement_of_the_book_has_a_row():
    stated = re.compile(
        r"\{prf:(?:lemma|theorem|proposition|corollary|example)\}[^\n]*\n# :label: (\S+)"
    )
    found = {
        label
        for source in (ROOT / "notebooks").glob("*.py")
        for label in stated.findall(source.read_text())
    }
    assert found - {item for claim in LEDGER for item in claim.items} == set()


@pytest.mark.parametrize(
    "broken",
    [
        Claim("x", "Lemma 9", "all is well", "proved"),
        Claim("x", "Lemma 9", "all is well", "confirmed"),
        Claim(
            "x",
            "Lemma 9",
            "all is well",
            where=("tests/claims/test_ledger.py::test_each_claim_holds",),
        ),
        replace(RUN[1], items=("lem-nowhere",)),
        replace(RUN[1], where=("tests/claims/test_ledger.py::test_of_nothing",)),
        replace(RUN[1], where=("02_query_key_invariance#claim-nothing",)),
        replace(RUN[1], status="corrected"),
        replace(RUN[1], status="confirmed with conditions"),
    ],
)
def test_an_unsound_row_is_found(broken):
    assert problems(broken)


@pytest.mark.parametrize(
    "change",
    [
        dict(expected=(35,)),
        dict(methods=("identity",)),
        dict(methods=(*RUN[1].methods, "training")),
    ],
)
def test_a_row_that_says_something_else_than_its_evidence_fails(change):
    with pytest.raises(ClaimFails):
        verify(replace(RUN[1], **change))


@pytest.mark.parametrize(
    "claim", [c for c in RUN if "formula" in c.methods], ids=lambda claim: claim.id
)
def test_a_broken_formula_is_seen_by_the_ledger(claim, monkeypatch):
    whole = counting.count
    monkeypatch.setattr(
        counting,
        "count",
        lambda a: counting.Count(a.parameters, {t: n + 1 for t, n in whole(a).terms.items()}),
    )
    with pytest.raises(ClaimFails, match="formula"):
        verify(claim)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("act_query_key", lambda S, Q, K, *b: (S @ Q, S @ K, *b)),
        ("act_value_output", lambda S, V, O: (S @ V, O @ S)),
    ],
)
def test_a_broken_action_is_seen_by_the_ledger(name, wrong, monkeypatch):
    monkeypatch.setattr(evidence, name, wrong)
    with pytest.raises(ClaimFails, match="identity"):
        verify(
            next(
                c
                for c in RUN
                if c.id == {"act_query_key": "lemma-4.1", "act_value_output": "lemma-4.6"}[name]
            )
        )


def test_the_ledger_is_public():
    assert attnid.claims.LEDGER is LEDGER


@pytest.mark.parametrize("claim", [c for c in LEDGER if c.chapter], ids=lambda claim: claim.id)
def test_each_chapter_links_back_to_its_rows(claim):
    assert (
        f"<ledger-{claim.id.replace('.', '-')}>`"
        in (ROOT / "notebooks" / f"{claim.chapter}.py").read_text()
    )
