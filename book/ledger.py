"""The ledger and the errata as pages: the rows of `attnid.claims`, and what the executed chapters found of them.

python book/ledger.py    write both
"""

import re
from functools import cache
from pathlib import Path

import formal
import nbformat
from made import keep
from pairing import NOTEBOOKS, output_text

from attnid.claims import LEDGER

BOOK = Path(__file__).resolve().parent
KINDS = {
    "measurement": "an independent measurement",
    "identity": "an identity",
    "arithmetic": "arithmetic",
}
AGREEMENT = re.compile(r"^✓ (?P<row>\S+): .*(?:\n  .*)*", re.M)
METHOD = re.compile(r"(\w+)(?= (?:=|<|>|in) )")

LEDGER_HEAD = """# Ledger of claims

Every numbered statement, figure and figure in the text of {cite:t}`morrow2026`, and what came of it here.

What was found is what the cells of the chapters printed when they were last executed; the test suite executes them again. `check`
compares each number with its row, and stops where it differs.

- An independent *measurement* could have come out otherwise; an *identity* is two expressions of one value, to rounding; *arithmetic* is a formula evaluated.
- Counts come from the *formula* (`count`); from *generators*, which follow its list and bound it from below; from the *measured* rank (`measure`), which knows of
  neither and bounds it from above; and from the *exact* rank, over a prime field, of what the lemmas say is seen.
- {doc}`Mutations <mutations>` show for each row that its checks can fail; {doc}`formal proofs <formal>` are those that a machine has checked.

"""

ERRATA_HEAD = """# Errata of the paper

Where {cite:t}`morrow2026` is wrong, or holds under conditions that it does not state. Each point was derived again here before it was
printed, and each leads to the row of the {doc}`ledger <ledger>` whose checks show it.

"""


@cache
def agreements(chapter):
    """Row -> the lines that its checks printed when the chapter was last executed."""
    notebook = nbformat.read(NOTEBOOKS / f"{chapter}.ipynb", as_version=4)
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for line in AGREEMENT.finditer(output_text(output)):
                found.setdefault(line["row"], []).append(line[0].replace("\n  ", " "))
    return found


def found(claim):
    """What the chapter of a row found of it, in lines."""
    return agreements(claim.chapter).get(claim.id, []) if claim.chapter else []


def problems(claim):
    """Where the executed chapter and a row differ: a check that was not made, or twice, or that printed something else."""
    lines = found(claim)
    methods = [METHOD.findall(line) for line in lines]
    made = [method for line in methods for method in line]
    yield from (f"{claim.id}: {m} is not checked" for m in claim.checks if m not in made)
    yield from (f"{claim.id}: {m} is checked twice" for m in set(made) if made.count(m) > 1)
    for line, names in zip(lines, methods):
        if not set(names) <= claim.checks.keys() or line != claim.agreement(names):
            yield f"{claim.id}: {line!r} is not what the row says"


def chapter_link(claim):
    return f"{{doc}}`chapter {claim.chapter[:2]} <../notebooks/{claim.chapter}>`"


def in_the_book(claim):
    links = [f"{{prf:ref}}`{item}`" for item in claim.items]
    return ", ".join(links + ([chapter_link(claim)] if claim.chapter else [])) or "–"


def formal_twins(claim):
    """Links to the theorems that a machine has checked of a row's statements."""
    names = {name: None for item in claim.items for name in formal.by_item().get(item, [])}
    return [f"{{ref}}`{name} <{formal.target(name)}>`" for name in names]


def target(claim):
    return "ledger-" + claim.id.replace(".", "-")


def kinds(claim):
    """How many checks of each kind a row has, in words."""
    have = [check.kind for check in claim.checks.values()]
    plural = {"measurement": "measurements", "identity": "identities", "arithmetic": "arithmetic"}
    word = lambda kind: kind if have.count(kind) == 1 else plural[kind]
    return ", ".join(f"{have.count(kind)} {word(kind)}" for kind in KINDS if kind in have) or "–"


def overview(claims):
    rows = [
        f"| [{claim.paper}](#{target(claim)}) | {in_the_book(claim)} | {kinds(claim)} | {len(formal_twins(claim)) or '–'} | {claim.status} |"
        for claim in claims
    ]
    return "\n".join(
        ["| Paper | Here | Checks | Formal | Status |", "|---|---|---|---|---|", *rows, "", ""]
    )


def by_kind(claim):
    """A row's checks, those of one kind together, in words."""
    parts = (
        f"{KINDS[kind]}: " + ", ".join(f"*{name.replace('_', ' ')}*" for name in names)
        for kind in KINDS
        if (names := [name for name, check in claim.checks.items() if check.kind == kind])
    )
    return "; ".join(parts)


def entry(claim):
    lines = [
        f"({target(claim)})=",
        f"## {claim.paper[0].upper() + claim.paper[1:]}",
        "",
        claim.claim,
        "",
        f"- Status: **{claim.status}**" + (f" ({claim.conditions})" if claim.conditions else ""),
    ]
    if claim.checks:
        lines += [f"- Here: {in_the_book(claim)}", f"- Kinds of check: {by_kind(claim)}"]
        lines += ["- Found: " + "; ".join(f"`{line.split(': ', 1)[1]}`" for line in found(claim))]
    if twins := formal_twins(claim):
        lines += [f"- Checked by a machine: {', '.join(twins)}"]
    if claim.tests:
        lines += [f"- Tests that hold more of it: {', '.join(f'`{test}`' for test in claim.tests)}"]
    if claim.printed:
        lines += [f"- In the paper: {claim.printed}"]
    return "\n".join(lines) + "\n\n"


def erratum(number, claim):
    return (
        f"## {number}. {claim.paper[0].upper() + claim.paper[1:]}\n\n*In the paper:* {claim.printed}\n\n*What holds:* {claim.claim}"
        + (f" Needed: {claim.conditions}." if claim.conditions else "")
        + f"\n\n{claim.status.capitalize()}; see {{ref}}`its row <{target(claim)}>`{', ' + in_the_book(claim) if claim.chapter else ''}.\n\n"
    )


def ledger_page():
    return LEDGER_HEAD + overview(LEDGER) + "".join(map(entry, LEDGER))


def errata_page():
    wrong = [claim for claim in LEDGER if claim.printed]
    return ERRATA_HEAD + "".join(erratum(number, claim) for number, claim in enumerate(wrong, 1))


def write_pages(folder=BOOK):
    """Write both pages where they are not there yet as they should be."""
    for name, text in (("ledger.md", ledger_page()), ("errata.md", errata_page())):
        keep(folder / name, (text.rstrip() + "\n").encode())


if __name__ == "__main__":
    write_pages()
