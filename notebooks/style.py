"""What a chapter looks like: the frame that every page has, and no import that nothing uses.

python notebooks/style.py
"""

import ast
import re
import sys

from first_cell import first_cell
from pairing import LONGEST_CELL, NOTEBOOKS, chapters, read_source

SECTIONS = ("The question", "The claim", "Break it", "What it means", "Exercises")


def texts(notebook, kind):
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def missing_frame(notebook):
    """Each part of the frame that is absent or out of its order."""
    text = "\n".join(texts(notebook, "markdown"))
    if not re.match(r"# \S.*\n\n\*Assumed: ", text):
        yield 'it does not begin with a title and a line "*Assumed: …*"'
    headings = re.findall(
        r"^## ([^:\n]+)", text, re.MULTILINE
    )  # what follows a colon is the chapter's own
    yield from (
        f'it has no section "{section}"'
        for section in SECTIONS
        if section not in headings
    )
    found = [heading for heading in headings if heading in SECTIONS]
    if found != sorted(found, key=SECTIONS.index):
        yield f"its sections are out of order: {', '.join(found)}"
    last = texts(notebook, "markdown")[-1].strip()
    if not re.search(r"^\*{0,2}Next\b", last, re.MULTILINE):
        yield 'its last cell has no line that begins with "Next"'


def unused_imports(notebook):
    """The names that code cells import and no code cell uses."""
    tree = ast.parse("\n".join(texts(notebook, "code")))
    imports = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    names = {
        alias.asname or alias.name.split(".")[0]
        for node in imports
        for alias in node.names
    }
    return sorted(
        names - {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    )


def problems(chapter, folder=NOTEBOOKS):
    """Everything about a chapter's .py that a reviewer would send back, as a list of sentences."""
    notebook = read_source(folder / f"{chapter}.py")
    first = notebook.cells[0]
    is_first = first.source == first_cell() and first.metadata == {
        "tags": ["remove-cell"]
    }
    found = (
        [] if is_first else ["its first cell is not the one of notebooks/first_cell.py"]
    )
    found += [
        f"a cell has {len(lines)} lines, {LONGEST_CELL} are allowed"
        for source in texts(notebook, "code")
        if len(lines := source.splitlines()) > LONGEST_CELL
    ]
    return [
        *found,
        *missing_frame(notebook),
        *(f"the import {name} is not used" for name in unused_imports(notebook)),
    ]


if __name__ == "__main__":
    sys.exit(
        "\n".join(
            f"{chapter}: {problem}"
            for chapter in chapters()
            for problem in problems(chapter)
        )
        or 0
    )
