"""Whether two checkpoints are one function, and if not, which head of which layer differs."""

from dataclasses import dataclass
from itertools import groupby

from ..checks import is_finite, require
from .findings import Findings
from .folders import open_model

SIZES = ("embed_dim", "heads", "kv_heads", "head_dim", "value_dim", "qk_norm", "score")


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. same: whether there is no difference. differences: a Difference each.
    harmless: what differs and changes no output, likewise. moved: along how many directions that
    change no output the second was moved, in coordinates of the gauge of its heads (the numbers in
    which each S differs from the identity, and those of idle biases). reordered: how many heads and
    MLP units stand in other places. largest: the largest relative distance. tolerance: up to which
    a distance counts as rounding. notes: what was taken for granted.

    >>> from attnid.models.findings import Difference
    >>> off = Difference(3, 7, "query-key", 0.001)
    >>> print(comparison_table(Comparison(("a", "b"), False, (off,), (), 64, 0, 0.001, 1e-5)))
    a and b: different
    largest distance 1.0e-03 of the larger, of 1.0e-05 allowed
    moved along 64 directions that change no output; 0 heads and hidden units stand in other places
    <BLANKLINE>
    layer  distance  what
        3   1.0e-03  query-key of head 7
    <BLANKLINE>
    """

    names: tuple
    same: bool
    differences: tuple
    harmless: tuple
    moved: int
    reordered: int
    largest: float
    tolerance: float
    notes: tuple = ()


def compare(a, b, tolerance=None):
    """Whether the checkpoints at two paths are one function, up to the symmetries of attention, as
    a Comparison.

    Each is a Hugging Face folder with safetensors or a checkpoint of nanoGPT. Compared are each
    head's products over what it reads, with biases, what value biases add up to, the gains of norms
    inside the maps that alone read them, and the rest of the weights: an MLP up to the order of its
    units, and the scale of those with a gate, other tensors as they are. Heads, within their
    groups, and groups are matched so that distances are least. Symmetries of the residual stream,
    such as its rotations, count as differences. The arithmetic is float64; one layer of each is in
    memory at a time.

    tolerance: the largest relative distance that counts as none; by default that of TOLERANCES for
    the coarser dtype, and where the weights of a head are so uneven that rounding costs more, as
    much as it costs. ValueError naming what makes the two incomparable: another family, other
    sizes or vocabularies, a tensor that one lacks, or one that is not finite, with its place;
    otherwise errors as for `folders.open_model`.

    >>> import tempfile
    >>> from attnid.models.examples import save_gpt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, moved = save_gpt(folder, "one.pt"), save_gpt(folder, "moved.pt", gauge=True)
    ...     other = save_gpt(folder, "other.pt", seed=1)
    ...     same, different = compare(one, moved), compare(one, other)
    >>> same.same, same.moved, different.same
    (True, 64, False)
    """
    require(
        tolerance is None or is_finite(tolerance) and tolerance > 0,
        "tolerance",
        tolerance,
        "must be a positive number",
    )
    models = [open_model(path) for path in (a, b)]
    check_alike(*models)
    found = Findings(*models, tolerance)
    found.configurations()
    found.outside()
    for number in range(len(models[0].architecture.layers)):
        found.layer(number)
    return Comparison(
        names=tuple(model.architecture.name for model in models),
        same=not found.differences,
        differences=tuple(found.differences),
        harmless=tuple(found.harmless),
        moved=found.moved,
        reordered=found.reordered,
        largest=found.largest,
        tolerance=tolerance or found.floor,
        notes=tuple(found.notes),
    )


def check_alike(one, other):
    """ValueError where two open models are no two of a kind: another family, other sizes."""
    a, b = one.architecture, other.architecture
    pairs = [("model_type", a.model_type, b.model_type), ("layers", len(a.layers), len(b.layers))]
    for (_, x), (_, y) in zip(a.layers, b.layers):
        pairs += [(field, getattr(x, field), getattr(y, field)) for field in SIZES]
    for field, x, y in pairs:
        require(x == y, field, y, f"the first has {x!r}: the two cannot be compared")


def comparison_table(found):
    """What `compare` found, as text."""
    a, b = found.names
    verdict = "one function, up to rounding" if found.same else "different"
    lines = [
        f"{a} and {b}: {verdict}",
        f"largest distance {found.largest:.1e} of the larger, of {found.tolerance:.1e} allowed",
        f"moved along {found.moved:,} directions that change no output; "
        f"{found.reordered:,} heads and hidden units stand in other places",
    ]
    if found.differences:
        lines += ["", f"{'layer':>5}  {'distance':>8}  what"]
        lines += _lines(found.differences)
    lines += [""] * bool(found.harmless) + [*_harmless(found.harmless)]
    return "\n".join([*lines, "", *(f"note: {note}" for note in found.notes)])


def _lines(differences):
    # those of one layer, circuit and accident in a line
    key = lambda d: (-1 if d.layer is None else d.layer, d.circuit, d.accident or "")
    for (layer, circuit, accident), alike in groupby(sorted(differences, key=key), key):
        alike = list(alike)
        heads = [str(d.head) for d in alike if d.head is not None]
        where = f" of head{'s' * (len(heads) > 1)} {', '.join(heads)}" if heads else ""
        size = max(d.size for d in alike)
        why = f": {accident}" if accident else ""
        yield f"{'-' if layer < 0 else layer:>5}  {size:8.1e}  {circuit}{where}{why}"


def _harmless(differences):
    # those of one circuit and accident in a line
    key = lambda d: (d.circuit, d.accident or "")
    for (circuit, accident), alike in groupby(sorted(differences, key=key), key):
        layers = [str(d.layer) for d in alike if d.layer is not None]
        where = f" of layer{'s' * (len(layers) > 1)} {', '.join(layers)}" if layers else ""
        yield f"harmless: {circuit}{where}: {accident}"
