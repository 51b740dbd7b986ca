"""Numbers of each head that no gauge changes, and how far those of two checkpoints are apart."""

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment

from ..checks import require
from .blocks import fold, read_block
from .folders import open_model
from .identified import identified


@dataclass(frozen=True)
class Fingerprint:
    """Numbers that no gauge changes. layers: for each, circuit -> (H, n) float64, or (1, n) for
    what its heads have together.

    >>> one, other = ({"query-key": torch.tensor([[norm]])} for norm in (1.0, 3.0))
    >>> Fingerprint("a", "gpt2", (one,)).distance(Fingerprint("b", "gpt2", (other,)))
    0.5
    """

    name: str
    model_type: str
    layers: tuple

    def distance(self, other):
        """How far another fingerprint is, from 0 to 1.

        Of two heads and a circuit it is |a - b| / (|a| + |b|) with the numbers a and b of each; of
        two models the root mean square of that over layers, circuits and heads, each layer's heads
        matched so that it is least. 0 means that all numbers are equal; the other way round it is
        the same. ValueError where the layers are not alike.
        """
        shapes = [
            [{c: tuple(n.shape) for c, n in layer.items()} for layer in each.layers]
            for each in (self, other)
        ]
        require(shapes[0] == shapes[1], "other", other.name, "has layers of another kind or size")
        squares = torch.cat([_squares(a, b) for a, b in zip(self.layers, other.layers)])
        return squares.mean().sqrt().item()

    def as_dict(self):
        """The fingerprint as plain data."""
        layers = [{c: numbers.tolist() for c, numbers in layer.items()} for layer in self.layers]
        return {"name": self.name, "model_type": self.model_type, "layers": layers}


def fingerprint(path):
    """The Fingerprint of the checkpoint at a path. Errors as for `audit`.

    For each head, circuit and set of coordinates that turn alike: the singular values of the
    product over what is read, biases as one more column, the largest first; and its trace (real and
    imaginary part where planes turn), without biases. A gauge (S A, S^{-H} B) leaves the product
    A^H B as it is, and with it all of these. The singular values do not feel a rotation of what the
    layer reads and writes either. Gains of norms are inside the maps that alone read them.

    >>> import tempfile
    >>> from attnid.models.examples import save_gpt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, moved = save_gpt(folder, "one.pt"), save_gpt(folder, "moved.pt", gauge=True)
    ...     other = save_gpt(folder, "other.pt", seed=1)
    ...     found = [fingerprint(path) for path in (one, moved, other)]
    >>> found[0].distance(found[1]) < 1e-12, found[0].distance(found[2]) > 0.05
    (True, True)
    """
    model = open_model(path)
    layers = []
    for number in range(len(model.architecture.layers)):
        attention, p = fold(read_block(model, number))
        layers.append(head_numbers(attention, p))
    return Fingerprint(model.architecture.name, model.architecture.model_type, tuple(layers))


def head_numbers(attention, p):
    """circuit -> (H, n): the numbers of `fingerprint` of one layer with float64 parameters p."""
    found = {}
    for product in identified(attention, p):
        numbers = torch.cat(
            (product.singular_values().flatten(1), _traces(product, attention.E)), 1
        )
        found.setdefault(product.circuit, []).append(numbers)
    return {circuit: torch.cat(numbers, 1) for circuit, numbers in found.items()}


def _traces(product, E):
    # of the part that both sides read from the stream, (H, n)
    shared = product.shared.repeat_interleave(product.sharing, 0)[..., :E]
    width = min(shared.shape[-1], product.reading.shape[-1])
    traces = (shared[..., :width].conj() * product.reading[..., :width]).sum((2, 3))
    return torch.view_as_real(traces).flatten(1) if traces.is_complex() else traces


def _squares(a, b):
    # of one layer, circuit by circuit, its heads matched
    apart = {c: _apart(a[c][:, None], b[c][None]) for c in a}  # (H, H) or (1, 1)
    H = max(len(each) for each in apart.values())
    cost = sum(each for each in apart.values() if len(each) == H)
    rows, columns = linear_sum_assignment(cost.numpy())
    matched = [each[rows, columns] if len(each) == H else each[0] for each in apart.values()]
    return torch.cat(matched)


def _apart(x, y):
    size = x.norm(dim=-1) + y.norm(dim=-1)
    return ((x - y).norm(dim=-1) / size).nan_to_num(0).square()


def fingerprint_table(found):
    """The largest singular value and the trace of each head's products as a table of text."""
    lines = [f"{found.name} ({found.model_type}), {len(found.layers)} attention layers", ""]
    circuits = [c for c in found.layers[0] if c in ("query-key", "value-output")]
    lines += [f"{'layer':>5} {'head':>4}" + "".join(f"{c + ', |M|':>20}" for c in circuits)]
    for number, layer in enumerate(found.layers):
        for head in range(len(layer[circuits[0]])):
            sizes = [layer[c][head].norm().item() for c in circuits]
            lines.append(f"{number:5} {head:4}" + "".join(f"{size:20.6g}" for size in sizes))
    return "\n".join([*lines, "", "all numbers: --json"])
