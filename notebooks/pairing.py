"""A chapter is a pair of files, NN_name.py (edited by people) and NN_name.ipynb (its outputs). What can be wrong with a pair:

python notebooks/pairing.py
"""

import re
import sys
from pathlib import Path

import jupytext
import nbformat

NOTEBOOKS = Path(__file__).resolve().parent
LONGEST_CELL = 25  # lines
WIDTH = 88  # columns that a page of the book shows
FORBIDDEN = {
    "an absolute path": r"(?<![\w.:/])/(?:home|root|tmp|var|usr|opt|mnt|work|content|private|Users)/|\b[A-Z]:\\\w",
    "an address": r"\b0x[0-9a-fA-F]{6,}\b",
    "a warning": r"\b\w*Warning\b",
    "a progress bar": r"\d+%\||\bit/s\b|\bs/it\b|\r",
    "a timing": r"\bWall time\b|\bCPU times\b",
}


def chapters(folder=NOTEBOOKS):
    """The name of every chapter of which at least one file exists."""
    return sorted(
        {
            path.stem
            for path in folder.glob("[0-9][0-9]_*")
            if path.suffix in (".py", ".ipynb")
        }
    )


def read_source(path):
    """The notebook that a .py file describes, without jupytext's notes about blank lines."""
    notebook = jupytext.read(path, fmt="py:percent")
    for cell in notebook.cells:
        cell.metadata = {
            key: value
            for key, value in cell.metadata.items()
            if not key.startswith("lines_to_")
        }
    return notebook


def drift(source, notebook):
    """Where the cells of the two files differ: in kind, in text or in metadata."""
    if len(source.cells) != len(notebook.cells):
        yield f"{len(source.cells)} cells in the .py, {len(notebook.cells)} in the .ipynb"
    for number, (ours, theirs) in enumerate(zip(source.cells, notebook.cells)):
        for field in ("cell_type", "source", "metadata"):
            if ours[field] != theirs[field]:
                yield f"cell {number}: the {field} differs"


def output_text(output):
    """Everything in a stored output that is text, images apart."""
    data = output.get("data", {})
    return "\n".join(
        [
            output.get("text", ""),
            *(str(data[kind]) for kind in data if not kind.startswith("image/")),
        ]
    )


def bad_outputs(cell):
    """What a stored output must not hold."""
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"its output is the error {output.ename}"
        if output.get("name") == "stderr":
            yield "it writes to stderr"
        for what, pattern in FORBIDDEN.items():
            if re.search(pattern, output_text(output)):
                yield f"its output holds {what}"
        if widest(output_text(output)) > WIDTH:
            yield f"its output is wider than {WIDTH} columns"


def widest(text):
    """The length of the longest line of a text."""
    return max(map(len, text.splitlines()), default=0)


def bad_code(cell):
    """What is wrong with one executed code cell."""
    if cell.execution_count is None:
        yield "it was never executed"
    if len(cell.source.splitlines()) > LONGEST_CELL:
        yield f"it is longer than {LONGEST_CELL} lines"
    if widest(cell.source) > WIDTH:
        yield f"it is wider than {WIDTH} columns"
    if "nbval" in (cell.source + str(cell.metadata)).lower():
        yield "it asks nbval to look away"
    if cell.source.rstrip().endswith(";"):
        yield "its last semicolon hides a value from Jupyter, but not from nbval"
    yield from bad_outputs(cell)


def problems(chapter, folder=NOTEBOOKS):
    """Everything that is wrong with a pair, as a list of sentences."""
    py, ipynb = folder / f"{chapter}.py", folder / f"{chapter}.ipynb"
    missing = [f"{path.name} is missing" for path in (py, ipynb) if not path.exists()]
    if missing:
        return missing
    notebook = nbformat.read(ipynb, as_version=4)
    found = list(drift(read_source(py), notebook))
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernel is not python3")
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            found += [f"cell {number}: {problem}" for problem in bad_code(cell)]
    return found


if __name__ == "__main__":
    sys.exit(
        "\n".join(
            f"{chapter}: {problem}"
            for chapter in chapters()
            for problem in problems(chapter)
        )
        or 0
    )
