"""The first cell of every chapter, with the repository's address from _config.yml. Put it into a .py or bring it up to date:

python notebooks/first_cell.py          every chapter
python notebooks/first_cell.py 03 04    the chapters whose names begin so
"""

import sys

import yaml

from pairing import NOTEBOOKS, chapters

MARK = '# %% tags=["remove-cell"]\n'  # the book does not show the cell
HEADER_ENDS = "\n# ---\n\n"
TEXT = """\
# On Colab: fetch the book and install its package. In a clone: go to the records.
import os, subprocess, sys

if "google.colab" in sys.modules:
    address = "{address}"
    fetch = f"test -d ~/attnid || git clone -q --depth 1 {{address}} ~/attnid"
    install = f"{{sys.executable}} -m pip install -q ~/attnid"
    subprocess.run(f"{{fetch}} && {{install}}", shell=True, check=True)
    os.chdir(os.path.expanduser("~/attnid/notebooks"))
elif os.path.isdir("../../../notebooks/results"):
    os.chdir("../../../notebooks")"""


def repository():
    """The address and the branch of the public repository, which _config.yml alone names."""
    settings = yaml.safe_load(
        (NOTEBOOKS.parent / "_config.yml").read_text(encoding="utf-8")
    )["repository"]
    return settings["url"].rstrip("/"), settings["branch"]


def first_cell():
    """The source of the cell."""
    return TEXT.format(address=repository()[0])


def with_first_cell(source):
    """The text of a .py notebook with the cell in front of its first other one, in place of an older version."""
    header, body = source.split(HEADER_ENDS, 1)
    if body.startswith(MARK):
        body = body[body.index("# %%", len(MARK)) :]
    return f"{header}{HEADER_ENDS}{MARK}{first_cell()}\n\n{body}"


def main(prefixes):
    for chapter in (c for c in chapters() if c.startswith(tuple(prefixes) or "")):
        path = NOTEBOOKS / f"{chapter}.py"
        old = path.read_text(encoding="utf-8")
        new = with_first_cell(old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"notebooks/{chapter}.py")


if __name__ == "__main__":
    main(sys.argv[1:])
