"""The symbols of book/notation.md: what its tables say that each means, and what it may be."""

import re
from dataclasses import dataclass

from pairing import NOTEBOOKS

NOTATION = NOTEBOOKS.parent / "book" / "notation.md"

MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
TOKEN = re.compile(
    r"\\(?:begin|end|text|mathrm|mathcal|mathbb|mathbf|operatorname)\{[^}]*\}"
    r"|\\[A-Za-z]+|\\[^A-Za-z]|[A-Za-z]|\d+(?:\.\d+)?|[^\s~]"
)
SPACE = re.compile(
    r"(?<!\\)\\(?:[,;!: ]|(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z]))"
)
ALIASES = {
    r"\lVert": r"\|",
    r"\rVert": r"\|",
    r"\lvert": "|",
    r"\rvert": "|",
    r"\tfrac": r"\frac",
    r"\dfrac": r"\frac",
}
OPENING = {"{", "(", "[", r"\{", r"\langle"}
CLOSING = {"}", ")", "]", r"\}", r"\rangle"}
ACCENTS = {r"\bar", r"\hat", r"\tilde", r"\dot", r"\ddot"}

# the words of the last table, as regular expressions over tokens
SIZE = r"(?:\\(?:cdot|times|frac|sqrt|[lr]ceil|[lr]floor|min|max|[lc]dots|infty|binom|[{}])|[-+*/(){}\[\]^_'|,.!]|\d\S*|[a-zEHGDCL]) "
NUMBER = r"(?:\\(?:cdot|times|frac|sqrt|pm|infty|pi)|[-+*/(){}^.]|\d\S*) "
MATRIX = (
    rf"(?:- )?(?:{NUMBER})*(?:[a-z] )?I |\\mathrm\{{diag\}} .*|\\begin.*|\\binom .*"
)
WORDS = {
    "anything": ".*",
    "nothing": r"(?!)",
    "a size": f"(?:{SIZE})+",
    "a number": f"(?:{NUMBER})+",
    "a matrix of numbers": f"{MATRIX}|(?:{NUMBER})+",
}


@dataclass(frozen=True)
class Symbol:
    """How a symbol is written, by what names it goes, and what it may be in the text and in the code."""

    written: tuple
    meaning: str
    shapes: tuple
    code_names: tuple
    text: tuple
    code: tuple

    def __str__(self):
        return "".join(self.written)

    @property
    def base(self):
        return self.written[0]

    @property
    def index(self):
        """The index that makes it this symbol, as in W_Q."""
        return self.written[2:] if self.written[1:2] == ("_",) else ()

    @property
    def applied(self):
        """Whether it is written with an argument, as Q(X) is."""
        return self.written[1:2] == ("(",)

    @property
    def is_size(self):
        return "a size" in self.code

    @property
    def is_matrix(self):
        return (
            len(self.written) == 1
            and any("times" in part for shape in self.shapes for part in shape)
            and self.text != ("anything",)
        )

    @property
    def names(self):
        """What it is called: the words of its meaning that are set in italics."""
        return tuple(re.findall(r"\*(.+?)\*", self.meaning))


def said(symbol):
    """What a symbol is, up to the first sign of punctuation of its meaning."""
    plain = symbol.meaning.replace("*", "")
    meaning = re.split(r"[:;,](?![^$]*\$[^$]*$)", plain)[0]
    return f"{symbol} is {meaning or 'kept for what the notation lists'}"


def tokens(math):
    """A formula as its tokens, without spaces, and without braces around a single token."""
    math = SPACE.sub(" ", math).replace(r"\operatorname{", r"\mathrm{")
    text = " ".join(ALIASES.get(token, token) for token in TOKEN.findall(math))
    return tuple(re.sub(r"(?<!\S)\{ (\S+) \}", r"\1", text).split())


def fits(side, forms):
    """Whether the tokens have one of the forms: a word of WORDS, or a formula in which dots are anything."""
    text = "".join(f"{token} " for token in side)
    return any(re.fullmatch(pattern(form), text) for form in forms)


def pattern(form):
    return WORDS.get(form) or "".join(
        "(?:.* )?" if token == r"\ldots" else re.escape(f"{token} ")
        for token in tokens(form.strip("$"))
    )


def maths(text):
    return [display or inline for display, inline in MATH.findall(text)]


def tables(page):
    """The tables of a page, each a list of rows, each a dictionary from heads to cells."""
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        lines = [line.strip().strip("|").split("|") for line in block.splitlines()]
        head, _, *rows = [[cell.strip() for cell in line] for line in lines]
        yield [dict(zip(head, row, strict=True)) for row in rows]


def listed(page):
    """Every symbol of the page's tables. A symbol is explained in one of them, and its forms are in the last."""
    *explained, forms = tables(page)
    rows = [row for table in explained for row in table]
    meaning = {tokens(math): row for row in rows for math in maths(row["Symbol"])}
    return [
        symbol(tokens(math), meaning.get(tokens(math), {}), row)
        for row in forms
        for math in maths(row["Symbol"])
    ]


def symbol(written, row, forms):
    cell = lambda head: next((row[key] for key in row if key.startswith(head)), "")
    return Symbol(
        written,
        cell("Meaning"),
        tuple(map(tokens, maths(cell("Shape")))),
        tuple(re.findall(r"`([A-Za-z_]\w*)`(?!\))", cell("Name")))
        or written[:1] * (len(written) == 1),
        *(
            tuple(part.strip(" `") for part in forms[head].split(";"))
            for head in ("In the text", "In the code")
        ),
    )


def group(side, start):
    """The position after the group that begins at `start`: one token, or all up to the bracket that closes it."""
    depth = 0
    for end in range(start, len(side)):
        depth += (side[end] in OPENING) - (side[end] in CLOSING)
        if depth == 0:
            return end + 1
    return len(side)


def letter(side):
    """(base, index, whether it has an argument, accents) of a side that is one letter with its decoration, else None."""
    side, accents = list(side), []
    while side and side[0] in ACCENTS:
        accents.append(side.pop(0))
        if side and side[0] == "{":
            end = group(side, 0)
            side = side[1 : end - 1] + side[end:]
    at, index, applied = 1, (), False
    while at < len(side):
        end = group(side, at + 1) if side[at] in "_^" else at + 1
        inner = tuple(token for token in side[at + 1 : end] if token not in "{}")
        if side[at] == "_":
            index = inner
        elif side[at] == "(" and group(side, at) == len(side):
            applied, end = True, len(side)
        elif side[at] == "^" and re.fullmatch(r"[a-z*]|\( \w+ \)", " ".join(inner)):
            pass  # of a head or of a matrix, not a power
        elif side[at] != "'":
            return None
        at = end
    return (side[0], index, applied, accents) if side else None


def find(symbols, side):
    """(symbol, what is left of its index, accents) of a side that is a listed symbol, decorated or not, else None."""
    for one in symbols:
        if tuple(side) == one.written:
            return one, (), []
    base, index, applied, accents = letter(side) or ("", (), False, [])
    if not re.fullmatch(r"[A-Za-z]|\\\w+(\{.*\})?", base):
        return None
    for one in symbols:
        if one.applied and "nothing" in one.text:  # as it is written only
            continue
        start = index[: len(one.index)] == one.index
        if one.base == base and one.applied == applied and start:
            return one, index[len(one.index) :], accents
    return None
