"""One symbol, one meaning: where a chapter binds a symbol of book/notation.md to what does not fit its row there.

python notebooks/symbols.py        # or some chapters only: symbols.py 03 14
"""

import re
import sys

from notation import (
    CLOSING,
    NOTATION,
    OPENING,
    find,
    fits,
    group,
    listed,
    maths,
    said,
    tokens,
)
from pairing import NOTEBOOKS, chapters, read_source
from symbols_in_code import code_problems

PAGES = ("intro", "glossary")  # of book/

EQUAL = {"=", r"\in", r"\equiv"}
COMPARED = {"<", ">", r"\le", r"\ge", r"\leq", r"\geq", r"\ll", r"\gg"}
RELATIONS = EQUAL | COMPARED
RELATIONS |= {r"\ne", r"\neq", r"\approx", r"\propto", r"\to", r"\mapsto", r"\notin"}
RELATIONS |= {r"\subset", r"\succ", r"\succeq", r"\prec", r"\preceq", r"\perp", r"\mid"}
BREAKS = {",", ";", ".", ":", r"\quad", r"\qquad", r"\\", r"\iff", r"\implies"}
INSIDE = re.compile(r"\\(begin|end)\{(?:[pbv]?matrix|smallmatrix|cases|array)\}")
TURNED = ((r"^ \top"), "^ +", "^ *", "^ { -")  # what is done to matrices
DERIVED = (r"\partial", r"\dot", r"\nabla")  # what is done to functions
COUNTED = (
    "tokens|positions|layers|heads|blocks|products|planes|groups|parameters|numbers"
)


def chains(formula):
    """The outermost sides of a formula, in chains of [relation, side]: a = b = c, d < e are two chains."""
    done, chain, depth = [], [["", []]], 0
    for token in formula:
        inside = INSIDE.fullmatch(token)
        depth += (token in OPENING) - (token in CLOSING)
        depth += {"begin": 1, "end": -1}[inside[1]] if inside else 0
        words = token.startswith(r"\text{") and chain[-1][1]
        if depth == 0 and (token in BREAKS or words):
            done, chain = [*done, chain], [["", []]]
        elif depth == 0 and token in RELATIONS:
            if chain == [["", []]] and done:  # a line of a display that goes on
                chain = done.pop()
            chain.append([token, []])
        elif token != "&" and (inside or not re.match(r"\\(begin|end)\{", token)):
            chain[-1][1].append(token)
    return [*done, chain]


def equals(chain, here):
    """What a chain says that its side `here` is: (relation, other side) each."""
    for there, (relation, other) in enumerate(chain):
        low, high = sorted((here, there))
        between = {sign for sign, _ in chain[low + 1 : high + 1]}
        if there != here and other and between <= EQUAL:
            yield (relation if there > here else chain[here][0]), other


def may_be(symbol, relation, other):
    """Whether a symbol may equal another side, or lie in it."""
    if symbol.is_matrix and symbol.base in other:  # an equation for it
        return True
    space = relation == r"\in" and other[0].startswith(r"\mathbb")
    shape = tuple(token for token in other[2:] if token not in "{}")
    return space and shape in symbol.shapes or fits(other, symbol.text)


def false_equations(symbols, formula):
    """A symbol alone on one side, and on another what it is not; a matrix that is compared with a number."""
    for chain in chains(formula):
        for here, (relation, side) in enumerate(chain):
            symbol, index, accents = find(symbols, side) or (None, (), ())
            if symbol is None or "nothing" in symbol.text or r"\dot" in accents:
                continue
            if symbol.is_matrix and len(index) == 2:  # an entry
                continue
            for sign, other in equals(chain, here):
                binds = here == 0 or symbol.is_matrix
                if binds and not may_be(symbol, sign, other):
                    yield f"{' '.join(side)} {sign} {' '.join(other)}", symbol
            beside = {relation, *(sign for sign, _ in chain[here + 1 : here + 2])}
            if symbol.is_matrix and beside & COMPARED:
                yield "it is compared with a number", symbol


def places(formula):
    """(position, position after its index and primes) of each token that is not in an index."""
    at = 0
    while at < len(formula):
        if formula[at] == "_":
            at = group(formula, at + 1)
            continue
        end = at + 1
        while end < len(formula) and formula[end] in ("_", "'"):
            end = group(formula, end + 1) if formula[end] == "_" else end + 1
        yield at, end
        at = end


def false_uses(symbols, formula):
    """A letter in a form that no row has, a size that is turned or derived, a matrix and a number added."""
    for at, end in places(formula):
        after = " ".join(formula[end : end + 3])
        closed = group(formula, end) if after.startswith("(") else end
        applied, *_ = find(symbols, formula[at:closed]) or (None,)
        symbol = applied or (find(symbols, formula[at:end]) or (None,))[0]
        if symbol is None:
            continue
        if "nothing" in symbol.text:
            yield f"{formula[at]} in a form of its own", symbol
        before = formula[at - 1] if at else ""
        if symbol.is_size and (after.startswith(TURNED) or before in DERIVED):
            yield "it is used as no size", symbol
        if symbol.is_matrix and re.match(r"[-+] \d", after):
            yield "a number is added to it", symbol


def false_names(symbols, text):
    """A name of one symbol for another: "the loss $L$", "let $T$ be nonsingular", "blocks of $T$ positions"."""
    names = {name for symbol in symbols for name in symbol.names}
    name = "(?P<name>" + "|".join(sorted(names, key=len, reverse=True)) + r")\b"
    math = r"\$(?P<math>[^$]+)\$"
    article = r"(?:(?:a|an|any|some|the)\s+)?"
    defined = r",?\s+(?:be|denotes?|for|is (?:a|an|the)|the)\s+"
    before = rf"\b{name}\s+{math}"
    after = rf"{math}{defined}{article}{name}(?!\s+\$)"
    counted = rf"\b(?:of|has|have|with|the)\s+{math}\s+(?P<name>{COUNTED})\b"
    for form in (before, after, counted):
        for match in re.finditer(form, text):
            symbol, *_ = find(symbols, tokens(match["math"])) or (None,)
            number = form is counted
            if symbol and (
                symbol.is_matrix if number else match["name"] not in symbol.names
            ):
                yield (
                    f"{'it counts' if number else 'it is called'} {match['name']}",
                    symbol,
                )


def stems(words):
    """The beginnings of the longer words, by which plural and singular are one."""
    return {word[:5].lower() for word in re.findall(r"[A-Za-z]{4,}", words)}


def false_definitions(symbols, text):
    """ "Let $T$ be …", and no word of what follows is one of its meaning."""
    for match in re.finditer(r"\$([^$]+)\$\s+be\s+([^.,;:$]+)", text):
        symbol, _, accents = find(symbols, tokens(match[1])) or (None, (), ())
        if symbol is None or symbol.is_size or r"\dot" in accents:
            continue
        if not (stems(symbol.meaning) | {"zero", "given", "fixed"}) & stems(match[2]):
            yield f"it is to be {' '.join(match[2].split())}", symbol


def text_problems(symbols, text):
    """What a text binds again, as sentences."""
    for math in maths(text):
        formula = tokens(math)
        for false in (false_equations, false_uses):
            for fault, symbol in false(symbols, formula):
                yield f"${' '.join(math.split())}$: {fault}, but {said(symbol)}"
    for false in (false_names, false_definitions):
        for fault, symbol in false(symbols, text):
            yield f"${symbol}$: {fault}, but {said(symbol)}"


def texts(cell):
    """What a cell says in words: all of it, or the caption of its figure."""
    figure = cell.metadata.get("mystnb", {}).get("figure", {})
    return cell.source if cell.cell_type == "markdown" else figure.get("caption", "")


def problems(chapter, folder=NOTEBOOKS):
    """Everything that a chapter binds again, as a list of sentences."""
    symbols, cells = (
        listed(NOTATION.read_text()),
        read_source(folder / f"{chapter}.py").cells,
    )
    code = [cell.source for cell in cells[1:] if cell.cell_type == "code"]
    found = [fault for cell in cells for fault in text_problems(symbols, texts(cell))]
    return list(dict.fromkeys([*found, *code_problems(symbols, "\n".join(code))]))


def page_problems(page):
    """Everything that a page of the book without code binds again."""
    text = (NOTATION.parent / f"{page}.md").read_text()
    return list(dict.fromkeys(text_problems(listed(NOTATION.read_text()), text)))


if __name__ == "__main__":
    wanted = [f"{int(number):02}" for number in sys.argv[1:]]
    names = [name for name in chapters() if not wanted or name[:2] in wanted]
    found = [f"{name}: {fault}" for name in names for fault in problems(name)]
    for page in () if wanted else PAGES:
        found += [f"{page}: {fault}" for fault in page_problems(page)]
    sys.exit("\n".join(found) or 0)
