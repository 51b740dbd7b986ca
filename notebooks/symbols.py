"""One symbol, one meaning: where a chapter binds a symbol of book/notation.md to what does not fit its row there.

python notebooks/symbols.py [NN ...]
"""

import ast
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
    tokens,
)
from pairing import NOTEBOOKS, chapters, read_source

PAGES = ("intro", "glossary")

EQUAL = {"=", r"\in", r"\equiv"}
COMPARED = {"<", ">", r"\le", r"\ge", r"\leq", r"\geq", r"\ll", r"\gg"}
OTHERS = r"\ne \neq \approx \propto \to \mapsto \subset \succ \succeq \prec \preceq \perp \notin \sim \mid"
RELATIONS = EQUAL | COMPARED | set(OTHERS.split())
BREAKS = {",", ";", ".", ":", r"\quad", r"\qquad", r"\\", r"\iff", r"\implies"}
INSIDE = re.compile(r"\\(begin|end)\{(?:[pbv]?matrix|smallmatrix|cases|array)\}")
COUNTED = "tokens positions layers heads blocks products planes groups parameters numbers directions"


def said(symbol):
    meaning = re.split(r"[:;,](?![^$]*\$[^$]*$)", symbol.meaning.replace("*", ""))[0]
    return f"{symbol} is {meaning or 'kept for what the notation lists'}"


# what a text binds


def chains(formula):
    """The outermost sides of a formula as chains of [relation, side]: a = b = c, d < e are two chains."""
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
        if there != here and between <= EQUAL and other:
            yield (relation if there > here else chain[here][0]), other


def may_be(symbol, relation, other):
    if symbol.is_matrix and symbol.base in other:  # an equation for the symbol
        return True
    if relation == r"\in" and other[0].startswith(r"\mathbb"):
        shape = tuple(token for token in other[2:] if token not in "{}")
        if shape in symbol.shapes:
            return True
    return fits(other, symbol.text)


def false_equations(symbols, formula):
    for chain in chains(formula):
        for here, (sign, side) in enumerate(chain):
            symbol, index, accents = find(symbols, side) or (None, (), ())
            if symbol is None or symbol.text == ("nothing",):
                continue
            number = not symbol.is_matrix
            if not number and (r"\dot" in accents or len(index) == 2):
                continue  # a derivative, or an entry
            for relation, other in equals(chain, here):
                if (here == 0 or not number) and not may_be(symbol, relation, other):
                    yield f"{' '.join(side)} {relation} {' '.join(other)}", symbol
            if (
                not number
                and {sign, *(next_ for next_, _ in chain[here + 1 : here + 2])}
                & COMPARED
            ):
                yield "it is compared with a number", symbol


def decorated(formula, at):
    """The position after the letter at `at` with its index and primes."""
    end = at + 1
    while end < len(formula) and formula[end] in ("_", "'"):
        end = group(formula, end + 1) if formula[end] == "_" else end + 1
    return end


def false_uses(symbols, formula):
    """A letter in no form that is listed, a size that is turned or derived, a matrix plus a number."""
    at, kept = (
        0,
        {symbol.base: symbol for symbol in symbols if symbol.text == ("nothing",)},
    )
    while at < len(formula):
        if formula[at] == "_":  # what is in an index stands for itself
            at = group(formula, at + 1)
            continue
        end = decorated(formula, at)
        symbol, *_ = find(symbols, formula[at:end]) or (None,)
        before, after = formula[at - 1] if at else "", formula[end : end + 3]
        if formula[at] in kept:
            argument = group(formula, end) if after[:1] == ("(",) else end
            with_argument, *_ = find(symbols, formula[at:argument]) or (None,)
            if with_argument is None or with_argument.text == ("nothing",):
                yield f"{formula[at]} in a form of its own", kept[formula[at]]
        elif symbol and symbol.is_size:
            turned = after[:2] in (("^", r"\top"), ("^", "+"), ("^", "*")) or after == (
                "^",
                "{",
                "-",
            )
            if turned or before in (r"\partial", r"\dot", r"\nabla"):
                yield "it is used as no size", symbol
        elif (
            symbol
            and symbol.is_matrix
            and after[:1] in (("+",), ("-",))
            and after[1:2]
            and after[1][0].isdigit()
        ):
            yield "a number is added to it", symbol
        at = end


def false_names(symbols, text):
    """A name of one symbol given to another: "the loss $L$", "let $T$ be nonsingular", "blocks of $T$ positions"."""
    owner = {name: symbol for symbol in symbols for name in symbol.names}
    known = "|".join(sorted(map(re.escape, owner), key=len, reverse=True))
    before = rf"\b(?P<name>{known})\s+\$(?P<math>[^$]+)\$"
    after = rf"\$(?P<math>[^$]+)\$,?\s+(?:be|denotes?|for|is (?:a|an|the)|the)\s+(?:(?:a|an|any|some|the)\s+)?(?P<name>{known})\b(?!\s+\$)"
    for match in [*re.finditer(before, text), *re.finditer(after, text)]:
        symbol, *_ = find(symbols, tokens(match["math"])) or (None,)
        if symbol and match["name"] not in symbol.names:
            yield f"it is called {match['name']}", symbol
    counted = (
        rf"\b(?:of|has|have|with|the)\s+\$([^$]+)\$\s+(?:{COUNTED.replace(' ', '|')})\b"
    )
    for match in re.finditer(counted, text):
        symbol, *_ = find(symbols, tokens(match[1])) or (None,)
        if symbol and symbol.is_matrix:
            yield f"{match[0]}", symbol


def text_problems(symbols, text):
    """What a text binds again, as sentences."""
    for math in maths(text):
        formula = tokens(math)
        for fault, symbol in [
            *false_equations(symbols, formula),
            *false_uses(symbols, formula),
        ]:
            yield f"${' '.join(math.split())}$: {fault}, but {said(symbol)}"
    for fault, symbol in false_names(symbols, text):
        yield f"${symbol}$: {fault}, but {said(symbol)}"


# what code binds


def named(symbols, name):
    """The symbol that a name of the code stands for: S, S_h and S1, but not a lower-case letter."""
    letter = re.fullmatch(r"([A-Z])(?:_\w*|\d+)", name)
    for known in (name, letter and letter[1]):
        for symbol in symbols:
            if known in symbol.code_names and not re.fullmatch("[a-z]", name):
                return symbol
    return None


def bindings(tree):
    """Each (name, value or None) that code binds: None where a loop, an unpacking or a call gives it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from unpacked(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            yield from unpacked(node.target, node.value)
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from unpacked(node.target, None)
        elif isinstance(node, ast.arg):
            yield node.arg, None


def unpacked(target, value):
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        several = isinstance(value, (ast.Tuple, ast.List))
        values = value.elts if several else [None] * len(target.elts)
        for one, its in zip(target.elts, values):
            yield from unpacked(one, its)


def is_size(value):
    """Whether an expression may be a whole number: no product of matrices, no call but of a plain function."""
    return not any(
        isinstance(node, ast.MatMult)
        or isinstance(node, ast.Call)
        and (not isinstance(node.func, ast.Name) or node.func.id == "normal")
        for node in ast.walk(value)
    )


def is_number(value):
    parts = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    return all(isinstance(node, parts) for node in ast.walk(value))


def may_be_set_to(symbol, value):
    if any(
        isinstance(n, ast.Name) and n.id in symbol.code_names for n in ast.walk(value)
    ):
        return True
    text = re.sub(r"\s", "", ast.unparse(value)).replace("'", '"')
    words = {
        "anything": True,
        "a size": is_size(value),
        "a number": is_number(value),
        "a tensor": not is_number(value),
        "nothing": False,
    }
    return any(
        words[form]
        if form in words
        else re.fullmatch(
            ".*".join(map(re.escape, form.replace(" ", "").split("…"))), text
        )
        for form in symbol.code
    )


def uses(tree):
    """Each (name, whether as a tensor, expression) where a name is used as only a tensor, or only a number, can be."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            names, tensor = [node.value], True
        elif isinstance(node, ast.BinOp) and isinstance(
            node.op, (ast.MatMult, ast.FloorDiv, ast.Mod)
        ):
            names, tensor = [node.left, node.right], isinstance(node.op, ast.MatMult)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            names, tensor = node.args, False
        else:
            continue
        yield from (
            (one.id, tensor, ast.unparse(node))
            for one in names
            if isinstance(one, ast.Name)
        )


def code_problems(symbols, source):
    """What code binds again, as sentences."""
    tree = ast.parse(source)
    for name, value in bindings(tree):
        symbol = named(symbols, name)
        if symbol and symbol.code == ("nothing",):
            yield f"{name} is bound, but {said(symbol)}"
        elif symbol and value is not None and not may_be_set_to(symbol, value):
            yield f"{name} = {ast.unparse(value)}, but {said(symbol)}"
    for name, tensor, expression in uses(tree):
        symbol = named(symbols, name)
        if symbol and (symbol.is_size if tensor else symbol.is_matrix):
            use = "a tensor" if tensor else "a number"
            yield f"{expression} uses {name} as {use}, but {said(symbol)}"


def problems(chapter, folder=NOTEBOOKS, notation=NOTATION):
    """Everything that a chapter binds again, as a list of sentences."""
    symbols, found = listed(notation.read_text()), []
    cells = read_source(folder / f"{chapter}.py").cells
    for cell in cells:
        figure = cell.metadata.get("mystnb", {}).get("figure", {})
        text = (
            cell.source if cell.cell_type == "markdown" else figure.get("caption", "")
        )
        found += text_problems(symbols, text)
    code = [cell.source for cell in cells[1:] if cell.cell_type == "code"]
    return list(dict.fromkeys([*found, *code_problems(symbols, "\n".join(code))]))


def page_problems(page):
    """The same of a page of the book that has no code."""
    symbols = listed(NOTATION.read_text())
    text = (NOTATION.parent / f"{page}.md").read_text()
    return list(text_problems(symbols, text))


if __name__ == "__main__":
    chosen = [f"{int(number):02}" for number in sys.argv[1:]]
    names = [name for name in chapters() if not chosen or name[:2] in chosen]
    found = [f"{name}: {problem}" for name in names for problem in problems(name)]
    if not chosen:
        found += [
            f"{page}: {problem}" for page in PAGES for problem in page_problems(page)
        ]
    sys.exit("\n".join(found) or 0)
