"""What usually goes wrong where weights are converted, and how each accident is known: taken back,
the difference is gone.
"""

import math

import torch
from einops import rearrange
from scipy.optimize import linear_sum_assignment

from .blocks import fold
from .identified import distances, identified, level, nearest_order, overlaps, roundings
from .layouts import stored_coordinates
from .units import row_distance

ROTARY = "rotary halves against pairs"
TRANSPOSED = "a transposed map"
GROUPS = "groups of keys swapped"
BIAS = "a bias dropped"
FACTOR = "a factor in the scores"
OUTPUT_FACTOR = "a factor in the outputs"
TIED = "tied against untied"
ROUNDED = "rounding to a dtype"
OFFSET = "a gain that is off by one"

# rounding to the nearest of numbers spread evenly in their logarithm has relative errors of this
# root mean square, in units of the dtype's eps; what it costs may be that many times what it costs
# in the mean
ROUNDING, ROOM = 0.21, 4.0
COARSE = torch.bfloat16, torch.float16, torch.float32


def explain(ours, theirs, allowed, broken):
    """(circuit, head) -> the name of the accident that explains it, for those of `broken` that one
    does; the accident that explains most is taken first. ours, theirs: a Layer each. allowed:
    circuit -> (H,), the distances that are none.
    """
    explained = [(_rounded(ours, theirs, broken))]
    for name, a, b in _suspects(ours, theirs):
        attention, *sides = products(ours, theirs, a, b)
        _, apart = nearest_order(attention, *sides, allowed)
        explained.append(
            {
                (circuit, head): name
                for circuit, head in broken
                if circuit in apart and apart[circuit][head] <= allowed[circuit][head]
            }
        )
        if len(explained[-1]) == len(broken):
            break
    found = {}
    for each in sorted(explained, key=len, reverse=True):
        found = each | found
    return found


def products(ours, theirs, a=None, b=None):
    """The description and what is identified of two Layers, with biases alike; a, b: other raw
    parameters in place of theirs.
    """
    (attention, p), (_, q) = level(fold(ours, a), fold(theirs, b))
    return attention, identified(attention, p), identified(attention, q)


def explain_tensor(ours, theirs, allowed):
    """The name of the accident that explains the difference of two tensors, or None."""
    if ours.dim() == 2 and ours.shape[0] == ours.shape[1]:
        if row_distance(ours, theirs.T) <= allowed:
            return TRANSPOSED
    if ours.dim() == 1:
        for shift in (1, -1):
            if row_distance(ours.double(), theirs.double() + shift) <= allowed:
                return OFFSET
    coarse = coarser(ours, theirs)
    if coarse and row_distance(ours, theirs) <= torch.finfo(coarse).eps:
        return f"{ROUNDED}: {coarse}"
    return None


def coarser(ours, theirs):
    """The coarsest dtype that holds all numbers of one of two tensors and not those of the other;
    None where there is none.
    """
    for dtype in COARSE:
        a, b = (bool((t.to(dtype).double() == t.double()).all()) for t in (ours, theirs))
        if a != b:
            return dtype
    return None


def _rounded(ours, theirs, broken):
    flat = [
        torch.cat([t.double().flatten() for t in layer.raw.values()]) for layer in (ours, theirs)
    ]
    coarse = coarser(*flat)
    if coarse is None:
        return {}
    _, a, b = products(ours, theirs)
    apart, cost = distances(a, b), roundings(a)
    room = ROOM * ROUNDING * torch.finfo(coarse).eps
    return {
        (circuit, head): f"{ROUNDED}: {coarse}"
        for circuit, head in broken
        if apart[circuit][head] <= room * cost[circuit][head]
    }


def _suspects(ours, theirs):
    # (name, our raw parameters, theirs with the accident taken back)
    a, b = ours.raw, theirs.raw
    for suspect in (_rotary, _dropped, _scaled, _swapped, _regrouped, _transposed):
        yield from suspect(ours, theirs, a, b)


def _rotary(ours, theirs, a, b):
    if not ours.attention.rotary:
        return
    order = stored_coordinates(ours.attention)
    for back in (order, order.argsort()):
        yield ROTARY, a, b | _rows(b, "QK", lambda rows: rows[:, back])


def _rows(p, letters, change):
    # the maps and biases of these letters, their rows (heads, d, ...) changed
    names = [f"{kind}_{letter}" for letter in letters for kind in "Wb"]
    return {name: change(p[name]) for name in names if name in p}


def _dropped(ours, theirs, a, b):
    for letter, word in zip("QKVO", ("query", "key", "value", "output")):
        name = f"b_{letter}"
        there = [bool(p[name].any()) if name in p else False for p in (a, b)]
        if there[0] != there[1]:
            without = lambda p: p | ({name: torch.zeros_like(p[name])} if name in p else {})
            yield f"{BIAS}: that of the {word} map", without(a), without(b)


def _transposed(ours, theirs, a, b):
    E = ours.attention.E
    turned = {}
    for letter in "QKVO":
        W = _stored(ours.attention, b[f"W_{letter}"], letter)
        if W.shape == (E, E):
            turned[letter] = _read(ours.attention, W.T, letter, b[f"W_{letter}"])
    choices = [*turned, *[letters for letters in ("QKV", "QKVO") if set(letters) <= set(turned)]]
    for letters in choices:
        names = ", ".join(f"W_{letter}" for letter in letters)
        yield f"{TRANSPOSED}: {names}", a, b | {f"W_{x}": turned[x] for x in letters}


def _stored(attention, W, letter):
    # the map as one matrix, its rows in the order of files
    if letter == "O":
        return rearrange(W, "h e c -> e (h c)")
    if letter in "QK":
        W = W[:, stored_coordinates(attention).argsort()]
    return W.flatten(0, 1)


def _read(attention, stored, letter, like):
    if letter == "O":
        return rearrange(stored, "e (h c) -> h e c", h=len(like))
    W = stored.reshape(like.shape)
    return W[:, stored_coordinates(attention)] if letter in "QK" else W


def _regrouped(ours, theirs, a, b):
    # head h reads group h mod G, and not the h / (H / G)-th
    H, G = ours.attention.H, ours.attention.G
    if G in (1, H):
        return
    for shape in ((G, H // G), (H // G, G)):
        order = torch.arange(H).view(shape).T.flatten()
        moved = {n: b[n][order] for n in ("W_Q", "b_Q", "W_O", "sink") if n in b}
        yield f"{GROUPS}: queries read them in turn", a, b | moved


def _swapped(ours, theirs, a, b):
    if ours.attention.G == 1:
        return
    attention, p, q = products(ours, theirs)
    orders = {}
    for letter, circuit in (("K", "query-key"), ("V", "value-output")):
        gain = sum(_shared_overlaps(x, y) for x, y in zip(p, q) if x.circuit == circuit)
        orders[letter] = torch.from_numpy(linear_sum_assignment(gain, maximize=True)[1])
    still = torch.arange(attention.G)
    moved = [letter for letter, order in orders.items() if not torch.equal(order, still)]
    if moved:
        words = " and ".join({"K": "keys", "V": "values"}[letter] for letter in moved)
        taken = {letter: _rows(b, letter, lambda rows: rows[orders[letter]]) for letter in moved}
        fixed = b | {name: t for part in taken.values() for name, t in part.items()}
        yield f"{GROUPS}: {words}", a, fixed


def _shared_overlaps(x, y):
    # of our group g, and their group g' read by their heads of g: the cosine
    G, s = len(x.shared), x.sharing
    heads = torch.arange(len(x.reading))
    X = torch.einsum("gbim,hbjm->ghbij", x.shared, y.shared.conj())
    Y = torch.einsum("hbim,hbjm->hbij", x.reading, y.reading.conj())
    inner = (X[heads // s] * Y[:, None].conj()).real.sum((2, 3, 4))  # (H, G)
    K = torch.einsum("gbim,gbjm->gbij", y.shared, y.shared.conj())
    Q = torch.einsum("hbim,hbjm->hbij", y.reading, y.reading.conj())
    size = (K * Q[:, None].conj()).real.sum((2, 3, 4)).sqrt()
    return (inner / size).nan_to_num(0).view(G, s, G).sum(1)


def _scaled(ours, theirs, a, b):
    attention, p, q = products(ours, theirs)
    for circuit, names, name in (
        ("query-key", ("W_Q", "b_Q"), FACTOR),
        ("value-output", ("W_O",), OUTPUT_FACTOR),
    ):
        pairs = [(x, y) for x, y in zip(p, q) if x.circuit == circuit]
        inner = sum(overlaps(x, y).diagonal().sum() for x, y in pairs)
        factor = (inner / sum(x.sizes().square().sum() for x, _ in pairs)).item()
        if "gain_Q" in b and name == FACTOR:  # normalised, the scale of queries is in their gain
            names = ("gain_Q",)
        if math.isfinite(factor) and factor != 0:
            fixed = {n: b[n].double() / factor for n in names if n in b}
            yield f"{name}: {factor:.4g}", a, b | fixed
