"""The numbers that the built book gives to statements, figures and equations, counted in the sources: each kind through all pages."""

import posixpath
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

import yaml

from pairing import NOTEBOOKS, read_source

ROOT = NOTEBOOKS.parent
NUMBERED = re.compile(
    r"^(?:`{3,}|:{3,})\{(?:prf:(?P<kind>(?!proof)\w+)|(?P<figure>figure))\}"
)
OPTION = re.compile(r"^:(?:label|name): *(?P<label>\S+)")
EQUATION = re.compile(r"^\s*\$\$ *\((?P<label>[\w:-]+)\)\s*$")
TARGET = re.compile(r"^\((?P<label>[\w:-]+)\)=\s*$")


@dataclass(frozen=True)
class Target:
    """What a label names: the text of a reference to it, None where the reference brings its own, and its page."""

    text: str | None
    page: str


@cache
def pages():
    """The pages of the book in the order of its contents, as names without a suffix: "book/intro", "notebooks/01_…"."""
    contents = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    return [
        contents["root"],
        *(
            chapter["file"]
            for part in contents["parts"]
            for chapter in part["chapters"]
        ),
    ]


@cache
def pieces(page):
    """A page as a list of (its Markdown, None) and, for each figure that a cell makes, ("", the figure's metadata)."""
    path = ROOT / f"{page}.md"
    if path.exists():
        return [(path.read_text(encoding="utf-8"), None)]
    cells = read_source(ROOT / f"{page}.py").cells
    return [
        (c.source, None)
        if c.cell_type == "markdown"
        else ("", c.metadata.get("mystnb", {}).get("figure"))
        for c in cells
    ]


def labels(text):
    """Each thing with a number or a label in a Markdown text, in its order, as (kind, label)."""
    kind = None
    for line in text.splitlines():
        if found := NUMBERED.match(line):
            kind = found["kind"] or "figure"
        elif kind and (found := OPTION.match(line)):
            yield kind, found["label"]
            kind = None
        elif found := EQUATION.match(line):
            yield "equation", found["label"]
        elif found := TARGET.match(line):
            yield "target", found["label"]


def in_words(kind, number):
    """How the book refers to the numbered thing."""
    return {"figure": f"Fig. {number}", "equation": f"({number})", "target": None}.get(
        kind, f"{kind.capitalize()} {number}"
    )


@cache
def targets():
    """Label -> Target, for every label in the book."""
    counts, found = Counter(), {}
    for page in pages():
        for text, figure in pieces(page):
            for kind, label in [("figure", figure["name"])] if figure else labels(text):
                if label in found:
                    raise ValueError(
                        f"label={label}: on both {found[label].page} and {page}"
                    )
                counts[kind] += 1
                found[label] = Target(in_words(kind, counts[kind]), page)
    return found


def title(page):
    """The first heading of a page."""
    return next(
        line[2:].strip()
        for text, _ in pieces(page)
        for line in text.splitlines()
        if line.startswith("# ")
    )


def resolve(page, link):
    """The page that a link on another one leads to, with its suffix left out."""
    return posixpath.normpath(
        posixpath.join(posixpath.dirname(page), re.sub(r"\.(md|ipynb)$", "", link))
    )
