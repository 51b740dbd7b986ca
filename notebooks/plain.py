"""Plain twins of the chapters, for Jupyter and Colab: the book's directives and roles as Markdown, with the numbers of the built book.

    python notebooks/plain.py     writes book/colab/notebooks/NN_name.ipynb for each chapter in the book's contents

The twins are made from the .ipynb beside each .py, outputs included; nothing is executed.
"""

import re
from collections import Counter
from functools import cache

import nbformat
from attnid.files import write_whole
from pybtex.database import parse_file

from first_cell import repository
from numbering import EQUATION, ROOT, TARGET, pages, pieces, resolve, targets, title

FOLDER = ROOT / "book" / "colab"
DIRECTIVE = re.compile(r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:-]+)\} *(?P<title>.*)$")
FENCE = re.compile(r"^\s*(`{3,}|:{3,})")
ROLE = re.compile(r"\{(?P<name>[a-z:]+)\}`(?P<text>[^`]+)`")
TITLED = re.compile(r"^(?P<title>.+?)\s*<(?P<target>[^>]+)>$", re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?P<title>[^\]]*)\]\((?P<target>[^)\s#:]+\.(?:md|ipynb))\)")
NOTES = ("note", "warning", "tip", "important", "seealso")


def address(page):
    """Where a page can be read in the repository; a chapter as its plain twin."""
    url, branch = repository()
    return f"{url}/blob/{branch}/" + (
        f"book/colab/{page}.ipynb" if page.startswith("notebooks/") else f"{page}.md"
    )


def linked(text, there, here, anchor=""):
    return text if there == here else f"[{text}]({address(there)}{anchor})"


@cache
def anchors(page):
    """Label -> "#" and the spelling in which GitHub shows the heading that it names, of a Markdown page; GitHub gives a notebook none."""
    text = "" if page.startswith("notebooks/") else pieces(page)[0][0]
    seen, found = Counter(), {}
    for label, heading in re.findall(
        r"(?:^\(([\w:-]+)\)=\s+)?^#+ (.+)$", text, re.MULTILINE
    ):
        spelling = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found[label] = f"#{spelling}" + f"-{seen[spelling]}" * bool(
            seen[spelling]
        )  # the second of a name ends in -1
        seen[spelling] += 1
    return found


@cache
def bibliography():
    return parse_file(ROOT / "book" / "references.bib").entries


def surname(person):
    return " ".join(
        str(name) for name in (*person.rich_prelast_names, *person.rich_last_names)
    )


def cited(key, in_brackets):
    """A work as author and year, with a link to it: Su et al. [2024], or [Su et al., 2024] in brackets."""
    if key not in bibliography():
        raise ValueError(f"cite={key}: not in book/references.bib")
    entry = bibliography()[key]
    names = [surname(person) for person in entry.persons["author"]]
    authors = " and ".join(names) if len(names) < 3 else f"{names[0]} *et al.*"
    year, fields = entry.fields["year"], entry.fields
    url = fields.get("url") or f"https://arxiv.org/abs/{fields['eprint']}"
    return (
        f"[[{authors}, {year}]]({url})"
        if in_brackets
        else f"{authors} [[{year}]]({url})"
    )


def target(label):
    if label not in targets():
        raise ValueError(f"label={label}: no page of the contents has it")
    return targets()[label]


def role(found, page):
    """One role as text or a link; page is where it stands."""
    name, text = found["name"], found["text"]
    titled = TITLED.match(text)
    words, goal = (
        (" ".join(titled["title"].split()), titled["target"])
        if titled
        else (None, text.strip())
    )
    if name in ("prf:ref", "numref", "eq", "ref"):
        there = target(goal)
        if not (words or there.text):
            raise ValueError(
                f"{name}={goal}: a reference to a place without a number needs its own words"
            )
        return linked(
            words or there.text, there.page, page, anchors(there.page).get(goal, "")
        )
    if name == "doc":
        return linked(words or title(resolve(page, goal)), resolve(page, goal), page)
    if name in ("cite:t", "cite:p"):
        return ", ".join(
            cited(key.strip(), name == "cite:p") for key in goal.split(",")
        )
    if name == "term":
        return words or goal  # GitHub shows the glossary as a block of code
    raise ValueError(f"role={name}: no plain form of it is known")


def inline(text, page):
    """Text without roles, and with links that lead into the repository."""

    def link(found):
        there = resolve(page, found["target"])
        return linked(found["title"] or title(there), there, page)

    text = LINK.sub(link, text)
    return ROLE.sub(lambda found: role(found, page), text)


def framed(head, body):
    """A block that Jupyter sets apart; unlike a Markdown quotation it may hold displayed formulas."""
    return ["<blockquote>", "", head, "", *body, "", "</blockquote>"]


def directive(name, heading, lines, page):
    """A directive's lines as plain ones."""
    options = dict(
        re.match(r"^:([\w-]+): *(.*)$", line).groups()
        for line in lines
        if re.match(r"^:[\w-]+:", line)
    )
    body = plain_lines(
        [line for line in lines if not re.match(r"^:[\w-]+:", line)], page
    )
    while body and not body[0]:
        body.pop(0)
    if name == "prf:proof":
        return [f"*Proof.* {body[0]}", *body[1:], "", "∎"]
    if name.startswith("prf:"):
        return framed(
            f"**{target(options['label']).text}**"
            + f" ({inline(heading, page)})" * bool(heading),
            body,
        )
    if name == "dropdown" or "dropdown" in options.get("class", ""):
        return [
            "<details>",
            f"<summary>{inline(heading, page)}</summary>",
            "",
            *body,
            "",
            "</details>",
        ]
    if name == "admonition" or name in NOTES:
        return framed(
            f"**{inline(heading, page) if name == 'admonition' else name.capitalize()}**",
            body,
        )
    raise ValueError(f"directive={name}: no plain form of it is known")


def block(lines):
    """The lines of the fenced block that begins here, its last fence included."""
    fence = FENCE.match(lines[0])[1]
    ends = (
        n
        for n, line in enumerate(lines[1:], 1)
        if re.fullmatch(rf"{fence[0]}{{{len(fence)},}}", line.strip())
    )
    return lines[: next(ends, len(lines) - 1) + 1]


def plain_lines(lines, page):
    """The lines of a Markdown text without directives, roles and labels."""
    done, text = [], []
    while lines:
        inside = block(lines) if FENCE.match(lines[0]) else lines[:1]
        lines = lines[len(inside) :]
        if not FENCE.match(inside[0]):
            text += [plain_line(inside[0])]
            continue
        done, text = done + inline("\n".join(text), page).split("\n") * bool(text), []
        found = DIRECTIVE.match(inside[0])
        done += (
            directive(found["name"], found["title"], inside[1:-1], page)
            if found
            else inside
        )
    return done + inline("\n".join(text), page).split("\n") * bool(text)


def plain_line(line):
    """A line without a label: that of a formula becomes its number, that of a place goes."""
    found = EQUATION.match(line)
    return (
        f"\\tag{{{target(found['label']).text[1:-1]}}}\n$$"
        if found
        else ""
        if TARGET.match(line)
        else line
    )


def caption(cell, page):
    """The caption of a cell's figure as a cell of its own."""
    figure = cell.metadata["mystnb"]["figure"]
    source = f"**{target(figure['name']).text}** {inline(figure['caption'], page)}"
    return nbformat.v4.new_markdown_cell(source, id=f"{cell.id}-caption")


def plain(page):
    """The plain twin of a chapter, page being its name in the contents."""
    notebook = nbformat.read(ROOT / f"{page}.ipynb", as_version=4)
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = "\n".join(plain_lines(cell.source.split("\n"), page))
        cells += (
            [cell, caption(cell, page)]
            if "figure" in cell.metadata.get("mystnb", {})
            else [cell]
        )
    notebook.cells = cells
    notebook.metadata.pop(
        "jupytext", None
    )  # Jupyter would pair the twin with a .py of its own
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def chapters():
    return [page for page in pages() if page.startswith("notebooks/")]


def main():
    wanted = {FOLDER / f"{page}.ipynb": plain(page) for page in chapters()}
    for path in set(FOLDER.rglob("*.ipynb")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_whole(path, text.encode())
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
