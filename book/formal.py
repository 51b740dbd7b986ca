"""The formal twins of the book's statements: a page that lists them, and a fold under each statement that has one.

As an extension of Sphinx it adds the folds; python book/formal.py writes the page.
"""

import json
import sys
from functools import cache
from pathlib import Path

from docutils import nodes
from made import keep
from sphinx import addnodes

BOOK = Path(__file__).resolve().parent
ROOT = BOOK.parent
sys.path += [str(ROOT / "proofs"), str(ROOT / "notebooks")]

import statements  # noqa: E402
from first_cell import repository  # noqa: E402

HEAD = """# Checked by a machine

{count} statements of the book have a formal twin: a theorem in the language of [Rocq](https://rocq-prover.org)
with Mathematical Components, whose proof a program has checked from the rules of logic up. No axiom is assumed and no goal is left open;
`make proofs` checks all of it in half a minute where the prover is installed. Derivatives are formal, what stands at the first power of
$t$ along a straight line; where a twin says less than the statement of the book, it says what is missing.

"""


def by_item():
    """Label of a statement of the book -> names of its formal twins."""
    found = {}
    for name, row in rows().items():
        for item in row["items"]:
            found.setdefault(item, []).append(name)
    return found


@cache
def rows():
    """The theorems, name -> what is said of it, in the order of the chapters."""
    return json.loads((ROOT / "proofs" / "theorems.json").read_text(encoding="utf-8"))


@cache
def formal_texts():
    """Name -> what a page shows of the theorem: the declarations it stands under, and its statement."""
    return {name: statement.formal for name, statement in statements.theorems().items()}


def heading(name):
    words = name.replace("_", " ")
    return words[0].upper() + words[1:]


def target(name):
    return "formal-" + name.replace("_", "-").lower()


def source(file):
    """Where the file is read by people."""
    url, branch = repository()
    return f"{url}/blob/{branch}/proofs/{file}"


def introduction(file):
    """What a file of proofs holds, with a link to its chapter."""
    chapter = next((ROOT / "notebooks").glob(f"{file[2:4]}_*.py")).stem
    theorems = sum(row["file"] == file for row in rows().values())
    return f"{theorems} theorems on the statements of {{doc}}`../notebooks/{chapter}`."


def entry(name, row):
    twins = ", ".join(f"{{prf:ref}}`{item}`" for item in row["items"])
    lines = [f"({target(name)})=", f"### {heading(name)}", "", row["words"], ""]
    lines += [f"- Twin of {twins}"] if twins else []
    lines += [f"- Not in it: {row['missing']}"] if row["missing"] else []
    lines += [f"- Source: [`proofs/{row['file']}`]({source(row['file'])})", ""]
    lines += ["```{code-block} coq", formal_texts()[name], "```", ""]
    return "\n".join(lines) + "\n"


def page():
    """The page of all formal statements, chapter by chapter."""
    parts, file = [HEAD.format(count=len(by_item()))], None
    for name, row in rows().items():
        if row["file"] != file:
            file = row["file"]
            parts.append(f"## Chapter {int(file[2:4])}\n\n{introduction(file)}\n\n")
        parts.append(entry(name, row))
    return "".join(parts).rstrip() + "\n"


def write_page(path=BOOK / "formal.md"):
    """Write the page where it is not there yet as it should be."""
    keep(path, page().encode())


def fold(names):
    """What stands, closed, at the end of a statement: its formal twins, each with a link to where it is explained."""
    box = nodes.admonition(classes=["dropdown", "formal"])
    box += nodes.title("", "Checked by a machine")
    for name in names:
        words = nodes.inline("", heading(name))
        link = addnodes.pending_xref(
            "",
            words,
            refdomain="std",
            reftype="ref",
            refexplicit=True,
            reftarget=target(name),
            refwarn=True,
        )
        box += nodes.paragraph("", "", link)
        text = formal_texts()[name]
        box += nodes.literal_block(text, text, language="coq")
    return box


def add_folds(app, doctree):
    twins = by_item()
    for statement in list(doctree.findall(nodes.Element)):
        names = twins.get(statement.get("label"))
        if names and "proof" in statement["classes"]:
            box = fold(names)
            box.document = doctree
            statement += box


def setup(app):
    app.connect("doctree-read", add_folds)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_page()
