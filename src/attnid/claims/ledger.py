"""The ledger: every numbered statement and figure of the paper, what it claims, how that is
checked, and what came of it.

The rows are data (`ledger.toml`). A chapter computes what a row needs where the reader sees it, and
ends in `check`.
"""

import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

STATUSES = (
    "confirmed",
    "confirmed with conditions",
    "corrected",
    "tested, not settled",
    "not yet run",
)
KINDS = ("measurement", "identity", "arithmetic")
WIDTH = 88  # columns of a page of the book


class ClaimFails(AssertionError):
    """A method does not find what a claim says. `row` and `method` name them."""

    def __init__(self, row, method, found, expected):
        super().__init__(f"{row}: {method} finds {shown(found)}, expected {expected}")
        self.row, self.method = row, method


@dataclass(frozen=True)
class Check:
    """What one method must find.

    kind: an independent "measurement", an "identity" (two expressions of one value) or "arithmetic"
    (a formula evaluated).
    comparison and bound: "equals" (exact: counts, lists or tables of counts), "below" or "above" a
        number, or "within" two numbers.
    """

    kind: str
    comparison: str
    bound: Any

    @classmethod
    def read(cls, kind: str, **comparison):
        """From a row's table, as `kind = "identity", below = 1e-10`."""
        ((name, bound),) = comparison.items()
        return cls(kind, name, bound)

    def holds(self, found) -> bool:
        """Whether what was found is as expected; a NaN never is, and of several numbers each must
        be.
        """
        if self.comparison == "equals":
            return plain(found) == self.bound
        low, high = {
            "below": lambda bound: (-float("inf"), bound),
            "above": lambda bound: (bound, float("inf")),
            "within": lambda bound: bound,
        }[self.comparison](self.bound)
        numbers = list(flat(plain(found)))
        return bool(numbers) and all(low < number < high for number in numbers)

    def __str__(self):
        sign = {"equals": "=", "below": "<", "above": ">", "within": "in"}[self.comparison]
        return f"{sign} {shown(self.bound, 6)}"


@dataclass(frozen=True)
class Claim:
    """One row. `items` are the labels of its statements in the book, `chapter` the page on which
    `checks` are made, each once.

    `tests` names tests that hold more of it. `printed` is what the paper has instead, for rows of
    the errata, `conditions` what the claim needs.
    """

    id: str
    paper: str
    claim: str
    status: str
    chapter: str = ""
    items: list = field(default_factory=list)
    checks: dict = field(default_factory=dict)
    tests: list = field(default_factory=list)
    conditions: str = ""
    printed: str = ""

    def agreement(self, methods: Iterable[str]) -> str:
        """What holds when these methods find what they must, in a line: names joined where they
        find the same.
        """
        alike: dict[str, list[str]] = {}
        for method in methods:
            alike.setdefault(str(self.checks[method]), []).append(method)
        parts = (
            " = ".join(names) + f" {bound}"
            if bound.startswith("=")
            else ", ".join(f"{name} {bound}" for name in names)
            for bound, names in alike.items()
        )
        return f"✓ {self.id}: " + ", ".join(parts)


def plain(found):
    """Numbers as Python has them, from tensors and arrays of any depth."""
    found = getattr(found, "values", found) if hasattr(found, "dims") else found
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items()}
    return [plain(part) for part in found] if isinstance(found, (list, tuple)) else found


def flat(found):
    """The numbers in lists and tables of any depth."""
    if isinstance(found, dict):
        found = list(found.values())
    if not isinstance(found, list):
        yield found
        return
    for part in found:
        yield from flat(part)


def shown(found, digits: int = 2) -> str:
    """A number, or several, with no more digits than a reader needs."""
    found = plain(found)
    if isinstance(found, float):
        rounding = digits == 2 and 0 < abs(found) < 1e-15
        return "0 to rounding" if rounding else f"{found:.{digits}g}"
    if isinstance(found, list):
        return "[" + ", ".join(shown(part, digits) for part in found) + "]"
    if isinstance(found, dict):
        return ", ".join(f"{key} {shown(value, digits)}" for key, value in found.items())
    return str(found)


def read_ledger(text: str) -> tuple[Claim, ...]:
    """The rows of a ledger in TOML: a table for each, named by its id."""
    return tuple(
        Claim(row, **values | {"checks": {m: Check.read(**c) for m, c in checks.items()}})
        for row, values in tomllib.loads(text).items()
        for checks in [values.get("checks", {})]
    )


LEDGER = read_ledger(files(__package__).joinpath("ledger.toml").read_text(encoding="utf-8"))
ROWS = {claim.id: claim for claim in LEDGER}


def check(row: str, **found) -> None:
    """Compare what methods find with what a row of the ledger says, and print the agreement in a
    line.

    found: method -> a number, or several; each method is one of the row's `checks`, and is compared
    as that says. Raises ClaimFails, naming the row, the method, what it finds and what is expected,
    and ValueError for a row or a method that the ledger does not have.

    >>> check("ex-4.1", formula=[2, 6, 10], exact=[2, 6, 10])
    ✓ ex-4.1: formula = exact = [2, 6, 10]
    """
    if row not in ROWS:
        raise ValueError(f"row={row!r}: the ledger has {', '.join(ROWS)}")
    claim = ROWS[row]
    if not found or not found.keys() <= claim.checks.keys():
        raise ValueError(f"{row}: checks {list(claim.checks)}, not {list(found)}")
    for method, value in found.items():
        if not claim.checks[method].holds(value):
            raise ClaimFails(row, method, value, claim.checks[method])
    print(textwrap.fill(claim.agreement(found), WIDTH, subsequent_indent="  "))
