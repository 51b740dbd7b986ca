"""The measured count: the rank of a layer's Jacobian in all its parameters, over enough random
sequences.

Nothing here knows of symmetries. The outputs are linear in W_O and b_O, so their columns of the
Jacobian are Z (x) I_E with Z the weighted values; these are projected out of the other columns,
which changes no rank and leaves a smaller matrix to decompose. J^T J is never formed.
"""

import math
from dataclasses import dataclass, field
from functools import partial, singledispatch

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..checks import require, require_size
from .attention import attend, gate_logits, project, random_inputs
from .description import Attention
from .differences import DifferentialAttention, forward_difference
from .latents import LatentAttention, forward_latent
from .parameters import check_parameters
from .scaling import NoGapError, even_heads, input_scale, refuse_what_rounding_hides, units

MIN_GAP = 1e6  # below this ratio a cut between kept and dropped singular values is refused
NOISE = 1e-12  # no singular value above this share of the largest is ever dropped
MAX_RESIDUAL = 1e-9  # a fresh sequence may change along a dropped direction by no more
MAX_ATTEMPTS = 4
WELL_CONDITIONED = (
    1e-2  # what of the weighted values is above this share of the largest is projected out
)
MAX_BYTES = 4 * 2**30  # of a Jacobian
MAX_PARAMETERS = 3000  # of a function whose structure is not used
ROWS = 3  # of its Jacobian for each parameter, at first
KNOWN = "must be an Attention, a LatentAttention, a DifferentialAttention or a GPTConfig"
FORWARD = {LatentAttention: forward_latent, DifferentialAttention: forward_difference}
OUTPUT = ("W_O", "b_O")
CHANGES = (
    "residual={:.1e}: fresh sequences still change the outputs along directions that seemed idle"
)


@dataclass(frozen=True)
class Measurement:
    """What `measure` saw. `gap` is the last kept over the first dropped singular value; `residual`
    the largest relative change of fresh sequences' outputs along any dropped direction; `sequences`
    how many were used before those, of `tokens` tokens. `spectrum` holds all singular values,
    largest first, the output's columns projected out of the others; `null_space` the dropped
    directions, name -> (nullity, *shape).

    >>> from attnid import Attention, measure
    >>> found = measure(Attention(4, 1, head_dim=2))
    >>> found.parameters, found.rank, found.nullity, found.gap > 1e6
    (32, 24, 8, True)
    """

    parameters: int
    rank: int
    nullity: int
    gap: float
    spectrum: torch.Tensor = field(repr=False)
    residual: float
    sequences: int
    tokens: int
    null_space: dict = field(repr=False)


def _hidden_jacobian(attention, parameters, x):
    """Weighted values z (B, L, HC) and name -> dz/dtheta (B, L, HC, size) for every parameter but
    those of the output.
    """
    extras = {n: p for n, p in parameters.items() if n.startswith(("gain", "sink", "R_"))}
    made = project(attention, parameters, x)
    made += (gate_logits(attention, parameters, x),) if attention.gate else ()

    def hidden(extras, *made):
        return attend(attention, extras, *made).transpose(-2, -3).flatten(-2)  # (L, HC)

    z, arguments = hidden(extras, *made), range(1 + len(made))
    derivative = torch.func.vmap(
        torch.func.jacrev(hidden, argnums=tuple(arguments)), in_dims=(None, *[0 for _ in made])
    )(extras, *made)
    blocks = {}
    for letter, d in zip("QKVG", derivative[1:]):  # (B, L, HC, heads, M, D)
        blocks["W_" + letter] = torch.einsum("blohmd,bmi->blohdi", d, x).flatten(3)
        if "b_" + letter in parameters:
            blocks["b_" + letter] = d.sum(-2).flatten(3)
    return z, blocks | {name: d.flatten(3) for name, d in derivative[0].items()}


def jacobian_blocks(
    attention, parameters, x: Float[Tensor, "B L E"], units
) -> tuple[Float[Tensor, "BL columns"], Float[Tensor, "BL E rest"]]:
    """The Jacobian of the outputs at x (B, L, E), in two parts.

    Z (BL, HC, and one more column where there is an output bias), so that the output parameters'
    columns are Z (x) I_E, and the other parameters' columns (BL, E, P'), both taken relative to
    `units`, as `scaling.units` gives them.
    """
    z, blocks = _hidden_jacobian(attention, parameters, x)
    W = parameters["W_O"].permute(1, 0, 2).flatten(1)  # (E, HC)
    rest = [name for name in parameters if name not in OUTPUT]
    hidden = torch.cat(
        [blocks[n] * units[n].expand_as(parameters[n]).flatten() for n in rest], -1
    )  # (B, L, HC, P')
    Z = z.flatten(0, 1) * units["W_O"].flatten().repeat_interleave(attention.C)
    if "b_O" in parameters:
        Z = torch.cat((Z, units["b_O"].expand(len(Z), 1)), 1)
    return Z, torch.matmul(W, hidden.flatten(0, 1))


def cut(spectrum: Float[Tensor, "P"]) -> tuple[int, float]:
    """Rank and gap of descending singular values: the widest ratio between neighbours whose lower
    one is noise.

    Raises NoGapError where that ratio is below MIN_GAP.
    """
    floor = torch.finfo(spectrum.dtype).eps * spectrum[0]
    padded = torch.cat((spectrum.clamp_min(floor), floor[None]))
    ratios = padded[:-1] / padded[1:]
    ratios[padded[1:] > NOISE * spectrum[0]] = 0
    gap, index = ratios.max(0)
    if not gap >= MIN_GAP:
        raise NoGapError(
            f"gap={gap.item():.1e}: the singular values have no gap of {MIN_GAP:.0e} to cut at; "
            "the weights are too badly scaled, or the scores saturate"
        )
    return int(index) + 1, float(gap)


def _triangular_null_space(R: Float[Tensor, "P P"], nullity, seed) -> Float[Tensor, "P nullity"]:
    """Directions (P, nullity) that the upper triangular R sends to rounding, by two steps of
    inverse iteration.
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(len(R), nullity, generator=generator, dtype=R.dtype)
    tiny = torch.finfo(R.dtype).eps * R.diagonal().abs().max()
    d = R.diagonal()
    R = R + torch.diag(torch.where(d.abs() < tiny, tiny, 0 * d))
    for _ in range(2):
        X = torch.linalg.solve_triangular(R.T, X, upper=False)
        X = torch.linalg.qr(torch.linalg.solve_triangular(R, X, upper=True)).Q
    return X


def _decompose(Z: Float[Tensor, "BL columns"], B: Float[Tensor, "BL E rest"], seed):
    """Spectrum, rank and gap of [Z (x) I_E, B], and a basis of its null space.

    The part of Z that is well conditioned is projected out of everything else. The basis comes in
    two parts: over the columns of Z (nullity, E, HC), and over those of B (nullity, P').
    """
    E, width = B.shape[1:]
    U, s, Vt = torch.linalg.svd(Z, full_matrices=True)
    r = int((s > WELL_CONDITIONED * s[0]).sum())
    weak = torch.einsum("tk,ef->tekf", Z @ Vt[r:].T, torch.eye(E, dtype=Z.dtype)).flatten(2)
    B = torch.cat((B, weak), -1)
    shadow = (U[:, :r].T @ B.flatten(1)).view(r, E, -1)  # what of B the strong columns of Z make
    B = B - (U[:, :r] @ shadow.flatten(1)).view_as(B)
    R = torch.linalg.qr(B.flatten(0, 1), mode="r").R
    R = torch.cat((R, R.new_zeros(R.shape[1] - len(R), R.shape[1])))
    spectrum = (
        torch.cat((s[:r].repeat_interleave(E), torch.linalg.svdvals(R)))
        .sort(descending=True)
        .values
    )
    rank, gap = cut(spectrum)
    X = _triangular_null_space(R, len(spectrum) - rank, seed)
    strong = -torch.einsum("kc,kew,wn->nec", Vt[:r] / s[:r, None], shadow, X)
    weak = torch.einsum("kc,kfn->nfc", Vt[r:], X[width:].unflatten(0, (-1, E)))
    return spectrum, rank, gap, (strong + weak, X[:width].T)


def _name_directions(attention, parameters, over_Z, over_B):
    """Null directions as name -> (nullity, *shape), in the description's order."""
    H, C = attention.H, attention.C
    directions = {"W_O": over_Z[..., : H * C].unflatten(-1, (H, C)).transpose(1, 2)}
    if "b_O" in parameters:
        directions["b_O"] = over_Z[..., -1]
    rest = [name for name in parameters if name not in OUTPUT]
    for name, part in zip(rest, over_B.split([parameters[n].numel() for n in rest], -1)):
        directions[name] = part.unflatten(-1, parameters[name].shape)
    return {name: directions[name] for name in attention.shapes}


def _largest_change(null, Z, B):
    """The largest norm of a null direction's image under [Z (x) I, B], over the typical norm of a
    column.
    """
    over_Z, over_B = null
    image = torch.einsum("tc,nec->nte", Z, over_Z) + torch.einsum("tew,nw->nte", B, over_B)
    length = (over_Z.flatten(1).square().sum(1) + over_B.square().sum(1)).sqrt()
    typical = (
        (B.square().sum() + B.shape[1] * Z.square().sum()) / (B.shape[2] + B.shape[1] * Z.shape[1])
    ).sqrt()
    return float((image.flatten(1).norm(dim=1) / length).max() / typical)


def plan(attention):
    """How many sequences of how many tokens to draw first.

    Long enough for offsets that are learned or tell rotations apart, and for the scores of a query,
    H for each key but one, to move its E outputs freely; where inputs are single numbers, for
    enough of those. As many as make more such rows than columns.
    """
    a = attention
    length = 6 + 2 * len(a.rotary) + min(a.E // a.H, 32) + 2 * a.H * (a.input_rank == 1)
    length += a.span or 0
    seen = (
        range(1, length + 1) if a.causal else [length] * (2 if a.input_rank == 1 else length)
    )  # equal queries see alike
    rows = sum(min(a.E, a.H * (keys - 1)) for keys in seen)
    columns = sum(math.prod(shape) for name, shape in a.shapes.items() if name not in OUTPUT)
    return math.ceil(1.1 * columns / rows + (a.H * a.C + 1) / length) + 1, length


def refuse_large(attention):
    """ValueError, before any tensor is made, where the Jacobian would take more than MAX_BYTES."""
    columns = sum(math.prod(s) for name, s in attention.shapes.items() if name not in OUTPUT)
    needed = 8 * columns**2  # at least, so that no plan is made of an absurd size
    if needed <= MAX_BYTES:
        batch, length = plan(attention)
        needed = 8 * batch * length * attention.E * columns
    if needed > MAX_BYTES:
        raise ValueError(
            f"attention={attention}: its Jacobian would take {needed / 2**30:,.0f} GiB or more, "
            f"and at most {MAX_BYTES // 2**30} GiB are tried; count gives the number by formula"
        )


@singledispatch
def measure(attention, *, seed=0, parameters=None):
    """Count the unidentified parameters of a layer by the rank of its Jacobian, in float64 on the
    CPU.

    The Jacobian is that of the outputs, in all parameters, at `parameters` (random ones by
    default), over random sequences. As many sequences are drawn as make more rows than columns.
    That they are enough is then shown on fresh, longer ones: if the outputs there do not change
    along the null directions of the first, then almost surely no sequence adds to the rank, since
    one that could would be found by almost every draw. If they do, more are drawn.

    Raises ValueError where a parameter is missing, of another shape or not finite, and NoGapError
    where the singular values have no gap to cut at.

    >>> from attnid import Attention, count
    >>> layer = Attention(8, 2, bias="qkvo")
    >>> measure(layer).nullity == count(layer).unidentified == 80
    True
    """
    require(isinstance(attention, Attention), "attention", attention, KNOWN)
    require_size("seed", seed, 0)
    seed = int(seed)
    refuse_large(attention)
    parameters = attention.random_parameters(seed) if parameters is None else parameters
    parameters = attention.check_parameters(parameters)
    evened = even_heads(attention, parameters)
    parameters = {n: t * evened[n] if n in evened else t for n, t in parameters.items()}
    scale, unit = input_scale(attention, parameters), units(attention, parameters)
    inputs = partial(random_inputs, attention, scale=scale)
    blocks = lambda x: jacobian_blocks(attention, parameters, x, unit)
    refuse_what_rounding_hides(attention, parameters, inputs(16, 8, seed))
    batch, length = plan(attention)
    for _ in range(MAX_ATTEMPTS):
        Z, B = blocks(inputs(batch, length, seed + 1))
        if not (torch.isfinite(Z).all() and torch.isfinite(B).all()):
            raise NoGapError("parameters: the outputs or their derivatives overflow")
        spectrum, rank, gap, null = _decompose(Z, B, seed)
        fresh = inputs(2 if attention.input_rank > 1 else batch, 2 * length, seed + 2)
        residual = _largest_change(null, *blocks(fresh))
        if residual < MAX_RESIDUAL:
            named = _name_directions(attention, parameters, *null)
            named = {n: d * unit[n] / evened.get(n, 1.0) for n, d in named.items()}
            P = attention.parameters
            return Measurement(P, rank, P - rank, gap, spectrum, residual, batch, length, named)
        batch, length = batch + batch // 2, length + 6
    raise NoGapError(CHANGES.format(residual))


@measure.register
def measure_described(
    attention: LatentAttention | DifferentialAttention, *, seed=0, parameters=None
):
    """The same for a layer of latent or differential attention, of at most MAX_PARAMETERS
    parameters.
    """
    a, length = attention, 6 + 2 * len(attention.rotary)

    def draw(number, seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(number, length, a.embed_dim, generator=generator, dtype=torch.float64)

    refuse_many(a)
    parameters = a.random_parameters(seed) if parameters is None else parameters
    parameters = check_parameters(a.shapes, parameters)
    return measure_function(
        partial(FORWARD[type(a)], a), parameters, draw, length * a.embed_dim, seed
    )


def refuse_many(description):
    """ValueError where a description has more than MAX_PARAMETERS parameters."""
    many = f"are more than {MAX_PARAMETERS}, too many to measure"
    require(description.parameters <= MAX_PARAMETERS, "parameters", description.parameters, many)


def measure_function(function, parameters, draw, seen, seed=0):
    """Count the unidentified parameters of any function(parameters, inputs), by the rank of its
    whole Jacobian.

    draw(number, seed) gives inputs, sequences of tokens along the first two dimensions; `seen` is
    how many numbers one sequence can tell, at most. More are drawn until the outputs of fresh ones
    do not change along the null directions of the first.
    """
    require_size("seed", seed, 0)
    seed, P = int(seed), sum(tensor.numel() for tensor in parameters.values())
    batch = math.ceil(ROWS * P / seen)
    for _ in range(MAX_ATTEMPTS):
        J = torch.linalg.qr(jacobian(function, parameters, draw(batch, seed + 1)), mode="r").R
        spectrum, Vh = torch.linalg.svd(torch.cat((J, J.new_zeros(max(0, P - len(J)), P))))[1:]
        rank, gap = cut(spectrum)
        inputs = draw(2 + batch // 4, seed + 2)
        fresh = jacobian(function, parameters, inputs)
        residual = largest_change(fresh, Vh[rank:])
        if residual < MAX_RESIDUAL:
            parts = Vh[rank:].split([tensor.numel() for tensor in parameters.values()], 1)
            null = {
                name: part.unflatten(1, tensor.shape) * _over_all(tensor)
                for part, (name, tensor) in zip(parts, parameters.items())
            }
            return Measurement(
                P, rank, P - rank, gap, spectrum, residual, batch, inputs.shape[1], null
            )
        batch *= 2
    raise NoGapError(CHANGES.format(residual))


def largest_change(J: Float[Tensor, "rows P"], null: Float[Tensor, "k P"]) -> float:
    """The largest norm of J along one of the directions (k, P), over the mean norm of its columns;
    0 where there is none.
    """
    change = (J @ null.T).norm(dim=0) / J.norm(dim=0).mean()
    return float(change.max()) if len(null) else 0.0


def jacobian(function, parameters, inputs: Shaped[Tensor, "B T ..."]) -> Float[Tensor, "rows P"]:
    """Columns (outputs at all inputs, P) in the parameters' order, relative to each tensor's root
    mean square.
    """
    one = lambda p, sequence: function(p, sequence[None]).flatten()
    blocks = torch.func.vmap(torch.func.jacrev(one), (None, 0), chunk_size=16)(parameters, inputs)
    rows = {name: block.flatten(2).flatten(0, 1) for name, block in blocks.items()}
    return torch.cat([rows[name] * _over_all(tensor) for name, tensor in parameters.items()], 1)


def _over_all(tensor):
    return tensor.square().mean().sqrt()
