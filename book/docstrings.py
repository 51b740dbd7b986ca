"""The docstrings of the package, which are plain prose, as what Sphinx reads: an extension for the page of reference."""

import re


def paragraphs(lines):
    """The paragraphs of a docstring, each a list of (indented, text)."""
    found = [[]]
    for line in lines:
        if line.strip():
            found[-1].append((line.startswith(" "), line.strip()))
        else:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def as_list(paragraph):
    """The items of a paragraph whose lines go on indented; else the paragraph as one line."""
    items = []
    for indented, text in paragraph:
        if items and (indented or not any(deep for deep, _ in paragraph)):
            items[-1] += " " + text
        else:
            items.append(text)
    return [f"- {item}" for item in items] if len(items) > 1 else items


def marked_up(text):
    """Code between backticks as code, everything else to the letter."""
    parts = re.split(r"`([^`]+)`", text)
    special = r"[*|\\]|(?<=\w)_(?=\W|$)"
    plain = [re.sub(special, lambda found: "\\" + found[0], part) for part in parts[::2]]
    code = [f"``{part}``" for part in parts[1::2]]
    return "".join(a + b for a, b in zip(plain, code + [""]))


def read_as_prose(app, what, name, subject, options, lines):
    text = []
    for paragraph in paragraphs(lines):
        example = paragraph[0][1].startswith(">>> ")
        shown = [line for _, line in paragraph] if example else map(marked_up, as_list(paragraph))
        text += [*shown, ""]
    lines[:] = text


def setup(app):
    app.connect("autodoc-process-docstring", read_as_prose)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
