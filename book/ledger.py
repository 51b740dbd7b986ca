"""The ledger and the errata as pages, made from the rows of `attnid.claims`: python book/ledger.py writes both."""

from pathlib import Path

from made import keep

from attnid.claims import LEDGER

BOOK = Path(__file__).resolve().parent

LEDGER_HEAD = """# Ledger of claims

Every numbered statement, figure and figure in the text of {cite:t}`morrow2026`, and what came of it here. A status says no more than what
was run: the test suite runs the evidence of each row again, compares what each method finds with the claim, and fails when a row points at
nothing. Methods: the *formula* is `count`; the *measured rank* is `measure`; *generators* are directions shown to change no output, and to
be independent; the *exact rank* is taken over a prime field; an *identity* is an equation that holds to rounding.

"""

ERRATA_HEAD = """# Errata of the paper

Where {cite:t}`morrow2026` is wrong, or holds under conditions that it does not state. Each point was derived again here before it was
printed, and each leads to the row of the {doc}`ledger <ledger>` whose evidence shows it.

"""


def place(where):
    """A cell's chapter as a link, or a test's name."""
    if "::" in where:
        return f"`{where}`"
    chapter, tag = where.split("#")
    return f"{{doc}}`chapter {chapter[:2]} <../notebooks/{chapter}>`, cell `{tag}`"


def in_the_book(claim):
    links = [f"{{prf:ref}}`{item}`" for item in claim.items]
    chapter = (
        [f"{{doc}}`chapter {claim.chapter[:2]} <../notebooks/{claim.chapter}>`"]
        if claim.chapter
        else []
    )
    return ", ".join(links + chapter) or "–"


def target(claim):
    return "ledger-" + claim.id.replace(".", "-")


def overview(claims):
    rows = [
        f"| [{claim.paper}](#{target(claim)}) | {in_the_book(claim)} | {', '.join(claim.methods) or '–'} | {claim.status} |"
        for claim in claims
    ]
    return "\n".join(["| Paper | Here | Methods | Status |", "|---|---|---|---|", *rows, "", ""])


def entry(claim):
    lines = [
        f"({target(claim)})=",
        f"## {claim.paper[0].upper() + claim.paper[1:]}",
        "",
        claim.claim,
        "",
        f"- Status: **{claim.status}**" + (f" ({claim.conditions})" if claim.conditions else ""),
    ]
    if claim.methods:
        lines += [
            f"- Here: {in_the_book(claim)}",
            f"- Methods: {', '.join(claim.methods)}; tolerance: {claim.tolerance}",
            f"- Checked by: {'; '.join(map(place, claim.where))}",
        ]
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
