"""Execute the .py notebooks and store their outputs in the .ipynb twins; the .py files are only read.

python notebooks/execute.py          every chapter
python notebooks/execute.py 03 04    the chapters whose names begin so; 3 means 03
"""

import hashlib
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import nbformat
from attnid.files import write_whole
from nbclient import NotebookClient

from pairing import NOTEBOOKS, chapters, read_source

CELL_TIMEOUT = 120  # seconds, as in the tests and in the book
QUIET = [
    "--log-level=ERROR"
]  # a kernel warns that it talks without encryption, to this machine itself


def name_cells(notebook):
    """Give each cell an id made from its text, so that an id changes only where the text does."""
    seen = {}
    for cell in notebook.cells:
        name = hashlib.sha256(f"{cell.cell_type}:{cell.source}".encode()).hexdigest()[
            :8
        ]
        seen[name] = seen.get(name, -1) + 1
        cell.id = f"{name}-{seen[name]}" if seen[name] else name


def tidy(notebook):
    """Keep no metadata that depends on who executed the notebook, and when."""
    kernel = notebook.metadata.kernelspec
    notebook.metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": {
            "display_name": kernel.display_name,
            "language": "python",
            "name": kernel.name,
        },
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5


def execute(chapter, folder=NOTEBOOKS):
    """Run one chapter from its .py and write its .ipynb."""
    notebook = read_source(folder / f"{chapter}.py")
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=QUIET,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    name_cells(notebook)
    tidy(notebook)
    nbformat.validate(notebook)
    write_whole(folder / f"{chapter}.ipynb", f"{nbformat.writes(notebook)}\n".encode())
    return chapter


def main(prefixes):
    prefixes = [
        prefix.zfill(2) if prefix.isdecimal() else prefix for prefix in prefixes
    ]  # 5 is 05, and not 50 to 59
    known = [c for c in chapters() if (NOTEBOOKS / f"{c}.py").exists()]
    for prefix in prefixes:
        if not any(c.startswith(prefix) for c in known):
            sys.exit(
                f"no chapter's name begins with {prefix!r}; there are {', '.join(known)}"
            )
    wanted = [c for c in known if c.startswith(tuple(prefixes) or "")]
    with ProcessPoolExecutor(max_workers=min(4, os.cpu_count())) as pool:
        for chapter in pool.map(execute, wanted):
            print(f"notebooks/{chapter}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
