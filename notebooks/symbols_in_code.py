"""What code binds again of the symbols of book/notation.md, by their names in the code."""

import ast
import re

from notation import said


def named(symbols, name):
    """The symbol that a name stands for, as S, S_h and S1 do. One lower-case letter stands for none."""
    if re.fullmatch("[a-z]", name):
        return None
    letter = re.fullmatch(r"([A-Z])(?:_\w*|\d+)", name)
    for known in (name, letter and letter[1]):
        for symbol in symbols:
            if known in symbol.code_names:
                return symbol
    return None


def bindings(tree):
    """Each (name, value) that code binds; the value is None where only running the code would tell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from unpacked(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            yield from unpacked(node.target, node.value)
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from unpacked(node.target, first_of(node.iter))
        elif isinstance(node, ast.arg):
            yield node.arg, None


def unpacked(target, value):
    """The names of a target, each with its part of the value."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        several = isinstance(value, (ast.Tuple, ast.List))
        values = value.elts if several else [None] * len(target.elts)
        for one, its in zip(target.elts, values):
            yield from unpacked(one, its)


def first_of(iterable):
    """The first thing that a loop meets, where it is written down: an element, or a number of a range."""
    first = getattr(iterable, "elts", None) and iterable.elts[0]
    if isinstance(first, (ast.Constant, ast.Tuple)):
        return first
    is_range = isinstance(iterable, ast.Call) and called(iterable) == "range"
    return ast.Constant(0) if is_range else None


def called(call):
    return getattr(call.func, "id", None)


def is_size(value):
    """Whether an expression may be a whole number: no product of matrices, no call of a method."""
    return not any(
        isinstance(node, ast.MatMult)
        or isinstance(node, ast.Call)
        and called(node) in (None, "normal")
        for node in ast.walk(value)
    )


def is_number(value):
    """Whether an expression is arithmetic of numbers alone."""
    parts = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    return all(isinstance(node, parts) for node in ast.walk(value))


WORDS = {
    "anything": lambda value: True,
    "nothing": lambda value: False,
    "a size": is_size,
    "a number": is_number,
    "a tensor": lambda value: not is_number(value),
}


def has_form(value, form):
    if form in WORDS:
        return WORDS[form](value)
    text = re.sub(r"\s", "", ast.unparse(value)).replace("'", '"')
    parts = form.replace(" ", "").split("...")
    return re.fullmatch(".*".join(map(re.escape, parts)), text) is not None


def may_be_set_to(symbol, value):
    """Whether a value is made from the symbol itself, or has a form of its row."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    itself = not names.isdisjoint(symbol.code_names)
    return itself or any(has_form(value, form) for form in symbol.code)


def uses(tree):
    """Each (name, "a tensor" or "a number", expression) where a name is used as only such a thing can be."""
    for node in ast.walk(tree):
        operator = getattr(node, "op", None)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            parts, kind = [node.value], "a tensor"
        elif isinstance(operator, ast.MatMult):
            parts, kind = [node.left, node.right], "a tensor"
        elif isinstance(node, ast.BinOp) and isinstance(
            operator, (ast.FloorDiv, ast.Mod)
        ):
            parts, kind = [node.left, node.right], "a number"
        elif isinstance(node, ast.Call) and called(node) == "range":
            parts, kind = node.args, "a number"
        else:
            continue
        for part in parts:
            if isinstance(part, ast.Name):
                yield part.id, kind, ast.unparse(node)


def code_problems(symbols, source):
    """What code binds again, as sentences."""
    tree = ast.parse(source)
    for name, value in bindings(tree):
        symbol = named(symbols, name)
        if symbol and "nothing" in symbol.code:
            yield f"{name} is bound, but {said(symbol)}"
        elif symbol and value is not None and not may_be_set_to(symbol, value):
            yield f"{name} = {ast.unparse(value)}, but {said(symbol)}"
    for name, kind, expression in uses(tree):
        symbol = named(symbols, name)
        false = symbol and (symbol.is_size if kind == "a tensor" else symbol.is_matrix)
        if false:
            yield f"{expression} uses {name} as {kind}, but {said(symbol)}"
