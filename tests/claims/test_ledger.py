"""The ledger holds: every row is checked by its chapter, points somewhere, and says no more than was run."""

import re
from dataclasses import replace
from pathlib import Path

import ledger
import numpy as np
import pytest
import torch

import attnid
from attnid.claims import LEDGER, STATUSES, Check, Claim, ClaimFails, check
from attnid.claims.ledger import KINDS, ROWS, read_ledger

ROOT = Path(__file__).resolve().parents[2]
SOUND = next(claim for claim in LEDGER if claim.id == "ex-4.1")
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
    """What is wrong with a row, beside what its checks find."""
    if claim.status not in STATUSES:
        yield f"status {claim.status!r}"
    if (claim.status == "not yet run") != (not claim.checks):
        yield f"is {claim.status} with {len(claim.checks)} checks"
    yield from (
        f"{m} is of kind {c.kind!r}" for m, c in claim.checks.items() if c.kind not in KINDS
    )
    if claim.status == "corrected" and not claim.printed:
        yield "is corrected, but not what"
    if claim.status == "confirmed with conditions" and not claim.conditions:
        yield "has conditions, but not which"
    yield from (f"points at nothing: {test}" for test in claim.tests if not exists(test))
    yield from missing_items(claim)


def exists(test):
    file, name = test.split("::")
    return (ROOT / file).exists() and f"def {name}(" in (ROOT / file).read_text()


def missing_items(claim):
    source = ROOT / "notebooks" / f"{claim.chapter}.py"
    text = source.read_text() if source.exists() else ""
    return [
        f"{item} is not in {claim.chapter}"
        for item in claim.items
        if f":label: {item}\n" not in text
    ]


@pytest.mark.parametrize("claim", LEDGER, ids=lambda claim: claim.id)
def test_the_chapter_checks_the_row(claim):
    assert list(ledger.problems(claim)) == []


@pytest.mark.parametrize("claim", LEDGER, ids=lambda claim: claim.id)
def test_each_row_is_sound(claim):
    assert list(problems(claim)) == []


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
    "change",
    [
        dict(status="proved"),
        dict(status="not yet run"),
        dict(checks={}),
        dict(checks={"formula": Check("guess", "equals", 3)}),
        dict(items=["lem-nowhere"]),
        dict(tests=["tests/claims/test_ledger.py::test_of_nothing"]),
        dict(status="corrected", printed=""),
        dict(status="confirmed with conditions", conditions=""),
    ],
)
def test_an_unsound_row_is_found(change):
    assert list(problems(SOUND)) == [] and list(problems(replace(SOUND, **change)))


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "✓ ex-4.1: formula = measured = generators = [2, 6, 10]",
        "✓ ex-4.1: formula = measured = generators = exact = [2, 6, 11]",
        "✓ ex-4.1: formula = measured = generators = exact = [2, 6, 10]\n✓ ex-4.1: exact = [2, 6, 10]",
        "✓ ex-4.1: formula = measured = generators = exact = training = [2, 6, 10]",
    ],
)
def test_a_chapter_that_differs_from_its_row_is_found(printed, monkeypatch):
    monkeypatch.setattr(ledger, "agreements", lambda chapter: {"ex-4.1": printed.split("\n")})
    assert list(ledger.problems(SOUND))


@pytest.mark.parametrize(
    "found", [[2, 6, 10], (2, 6, 10), np.array([2, 6, 10]), torch.tensor([2, 6, 10])]
)
def test_what_a_method_finds_may_have_any_form(found, capsys):
    check("ex-4.1", formula=found, exact=[2, 6, 10])
    assert capsys.readouterr().out == "✓ ex-4.1: formula = exact = [2, 6, 10]\n"


@pytest.mark.parametrize(
    "comparison, bound, good, bad",
    [
        ("equals", 36, [36, np.int64(36)], [35, [36], float("nan"), None]),
        ("below", 1e-10, [0.0, 3e-16, [1e-12, 0.0]], [1e-9, float("nan"), [1e-12, 1.0], []]),
        ("above", 1.0, [2, torch.tensor(3.0)], [1.0, float("nan"), {}]),
        ("within", [0.1, 0.2], [0.15, {"a": 0.11, "b": 0.19}], [0.2, {"a": 0.11, "b": 0.3}]),
    ],
)
def test_comparisons(comparison, bound, good, bad):
    it = Check("measurement", comparison, bound)
    assert all(map(it.holds, good)) and not any(map(it.holds, bad))


def test_a_long_agreement_keeps_to_the_page_and_is_read_again(capsys, monkeypatch):
    methods = {f"method_{n}": Check("identity", "below", 1e-10 / n) for n in range(1, 9)}
    long = replace(SOUND, checks=methods)
    monkeypatch.setitem(ROWS, SOUND.id, long)
    check(SOUND.id, **dict.fromkeys(methods, 0.0))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 88 < len(long.agreement(methods))
    (line,) = ledger.AGREEMENT.finditer(printed)
    assert line[0].replace("\n  ", " ") == long.agreement(methods)


def test_a_check_that_fails_names_row_method_and_numbers():
    with pytest.raises(
        ClaimFails, match=r"ex-4.1: measured finds \[2, 6, 11\], expected = \[2, 6, 10\]"
    ):
        check("ex-4.1", formula=[2, 6, 10], measured=[2, 6, 11])


@pytest.mark.parametrize(
    "row, found, said",
    [
        ("lemma-9.9", {"formula": 1}, "lemma-9.9"),
        ("ex-4.1", {"training": 1}, "training"),
        ("ex-4.1", {}, r"not \[\]"),
    ],
)
def test_a_check_that_the_ledger_does_not_have_is_refused(row, found, said):
    with pytest.raises(ValueError, match=said):
        check(row, **found)


def test_a_row_is_read_from_its_table():
    (claim,) = read_ledger(
        '["x-1"]\npaper = "Lemma 9"\nclaim = "all is well"\nstatus = "confirmed"\n'
        'checks.identity = { kind = "identity", below = 1e-10 }\n'
    )
    it = Check("identity", "below", 1e-10)
    assert claim == Claim("x-1", "Lemma 9", "all is well", "confirmed", checks={"identity": it})


def test_the_ledger_is_public():
    assert attnid.claims.LEDGER is LEDGER


@pytest.mark.parametrize("claim", [c for c in LEDGER if c.chapter], ids=lambda claim: claim.id)
def test_each_chapter_links_back_to_its_rows(claim):
    assert (
        f"<ledger-{claim.id.replace('.', '-')}>`"
        in (ROOT / "notebooks" / f"{claim.chapter}.py").read_text()
    )
