"""The page of mutations: one ingredient of each row's check is replaced, and the check is seen to fail.

    python book/mutations.py          run them all and write the page
    python book/mutations.py 03 04    run those of these chapters; what the page says of others stays

Each chapter has its file in `mutations`, a table for each replacement. `row` and `check` say whose check must fail, and which of its
checks; `what` says in words what is replaced; `old` and `new` are text in the chapter's code, or `patch` is a name of the package
and `by` an expression that stands in its place while the chapter runs (`torch` is at hand, `true` is the name's own value).
"""

import ast
import importlib
import os
import symtable
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from made import keep

import attnid
from attnid.claims import LEDGER, ClaimFails
from attnid.training import records

BOOK = Path(__file__).resolve().parent
sys.path.append(str(BOOK.parent / "notebooks"))

from pairing import NOTEBOOKS, read_source  # noqa: E402

records.read_record = cache(records.read_record)  # each record once, for all mutations
CHAPTER = {claim.id: claim.chapter for claim in LEDGER}
HEAD = """# Checks that can fail

A check that nothing could fail shows nothing. For every row of the {doc}`ledger <ledger>` one ingredient of what its chapter computes is
replaced here, and the row's own check must fail: the cells that it needs are run again with the replacement, and with their assertions
taken out, so that nothing else can notice. `make notebooks` runs them all; the tests run the first of each row again, compare what its check says with
this page, and see that the page belongs to the chapters as they are.

| Row | What was replaced | How its check failed |
|---|---|---|
"""


@dataclass(frozen=True)
class Mutation:
    """What is replaced for a row, by text in its chapter or by a name of the package, and which of its checks must fail."""

    row: str
    check: str
    what: str
    old: str = ""
    new: str = ""
    patch: str = ""
    by: str = ""


MUTATIONS = [
    Mutation(**table)
    for file in sorted((BOOK / "mutations").glob("*.toml"))
    for table in tomllib.loads(file.read_text(encoding="utf-8"))["mutation"]
]


class Unasserted(ast.NodeTransformer):
    """Code without its assertions."""

    def visit_Assert(self, node):
        return ast.copy_location(ast.Pass(), node)


def read(table):
    """The names of a cell's own level that its code reads, in functions and comprehensions too."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from read(inner)


def changed(statements):
    """The names that a cell changes in place: part of a value assigned, or an argument of a call whose value nobody takes."""
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func).split(".")[0] not in ("print", "figures", "check"):
                yield from (n.id for n in ast.walk(node.value) if isinstance(n, ast.Name))
        yield from changed(getattr(node, "body", []))


def bound(cell):
    """The names that a cell gives a value, or changes."""
    symbols = symtable.symtable(cell, "cell", "exec").get_symbols()
    given = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    return given | set(changed(ast.parse(cell).body))


def asks(tree, row):
    """Whether a cell holds a check of a row."""
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "check"
        and node.args
        and ast.unparse(node.args[0]) == repr(row)
        for node in ast.walk(tree)
    )


def needed(cells, row):
    """The cells that check a row, and those before them from which their names come, in order."""
    names, kept = set(), []
    for cell in reversed(cells):
        if asks(ast.parse(cell), row) or names & bound(cell):
            names |= set(read(symtable.symtable(cell, "cell", "exec")))
            kept.append(cell)
    return kept[::-1]


@cache
def code_of(chapter):
    """The code cells of a chapter, but for the first, which is Colab's."""
    notebook = read_source(NOTEBOOKS / f"{chapter}.py")
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"][1:]


@contextmanager
def replaced(patch, by):
    """A name of the package with another value for a while."""
    if not patch:
        yield
        return
    home, name = patch.rsplit(".", 1)
    module = importlib.import_module(home)
    true = getattr(module, name)
    vars(attnid).pop(name, None)  # a public name is asked for anew
    setattr(module, name, eval(by, {"torch": torch, "true": true}))
    try:
        yield
    finally:
        setattr(module, name, true)


def failure(mutation):
    """What the row's check says when the ingredient is replaced. AssertionError where nothing is replaced, or it survives."""
    cells = needed(code_of(CHAPTER[mutation.row]), mutation.row)
    source = "\n\n".join(cells)
    if mutation.old:
        assert mutation.old in source, f"{mutation.row}: {mutation.old!r} is not in its cells"
        source = source.replace(mutation.old, mutation.new)
    code = compile(Unasserted().visit(ast.parse(source)), CHAPTER[mutation.row], "exec")
    with (
        replaced(mutation.patch, mutation.by),
        chdir(NOTEBOOKS),
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
    ):
        try:
            exec(code, {"__name__": "chapter"})
        except ClaimFails as fails:
            assert (fails.row, fails.method) == (mutation.row, mutation.check), str(fails)
            return str(fails)
    raise AssertionError(f"{mutation.row} survives: {mutation.what}")


def line(mutation, failure):
    """A row of the page's table."""
    return f"| {mutation.row} | {mutation.what} | {failure.split(': ', 1)[1]} |\n"


def made_from(chapter):
    """A comment that says which code and which replacements the page shows."""
    table = (BOOK / "mutations" / f"{chapter}.toml").read_text(encoding="utf-8")
    digest = sha256("\n".join([*code_of(chapter), table]).encode()).hexdigest()
    return f"% {chapter} {digest[:16]}\n"


def page(prefixes=(), old=""):
    """The page, the mutations of some chapters run, by their numbers, or of all; the lines of the others as in the old page."""
    run = [m for m in MUTATIONS if CHAPTER[m.row].startswith(tuple(prefixes) or "")]
    with ProcessPoolExecutor() as pool:
        failures = dict(zip(run, pool.map(failure, run)))
    stay = old.splitlines(keepends=True)
    rows = ""
    for m in MUTATIONS:
        start = f"| {m.row} | {m.what} | {m.check} finds "
        rows += (
            line(m, failures[m]) if m in failures else next(s for s in stay if s.startswith(start))
        )
    chapters = sorted({CHAPTER[mutation.row] for mutation in MUTATIONS})
    return HEAD + rows + "\n" + "".join(map(made_from, chapters))


if __name__ == "__main__":
    path = BOOK / "mutations.md"
    wanted = [word.zfill(2) for word in sys.argv[1:]]
    keep(path, page(wanted, path.read_text(encoding="utf-8")).encode())
