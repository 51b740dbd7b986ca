"""What stands beside the attention in a layer of a checkpoint: its norms and its MLP, by family."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import require
from .layouts import FLOATS, NOT_WEIGHTS, read_layer, stored_coordinates


@dataclass(frozen=True)
class Block:
    """A family's names. up: the maps whose rows are hidden units, of which, where there are two,
    the first passes the activation and multiplies the second; `fused` has both in one map. down:
    the map that reads the units. norms: part -> the norm that only it reads, or only it and the
    other part; the first that is there. centred: whether norms take the mean out. offset: what is
    added to the gains as stored. Without `up` an MLP is of another kind, such as experts.
    """

    up: tuple = ()
    down: str = ""
    norms: tuple = ((), ())
    centred: bool = False
    offset: float = 0.0
    fused: bool = False


PRE = ("input_layernorm",), ("post_attention_layernorm",)
FEED = ("input_layernorm",), ("pre_feedforward_layernorm",)
GATED = Block(("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj", PRE)
EXPERTS = Block(norms=(PRE[0], ()))
WIDE = Block(("mlp.dense_h_to_4h",), "mlp.dense_4h_to_h", PRE, centred=True)
DENSE = Block(("intermediate.dense",), "output.dense")
GPT = Block(("mlp.c_fc",), "mlp.c_proj", (("ln_1",), ("ln_2",)), centred=True)

BLOCKS = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), GATED) | {
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "gpt_oss": EXPERTS,
    "gemma": replace(GATED, offset=1.0),
    "gemma2": replace(GATED, offset=1.0, norms=FEED),
    "gemma3_text": replace(GATED, offset=1.0, norms=FEED),
    "olmo2": replace(GATED, norms=((), ())),  # its norms come after the maps
    "bert": DENSE,  # and so do these
    "vit": replace(DENSE, norms=(("layernorm_before",), ("layernorm_after",)), centred=True),
    "gpt2": GPT,
    "nanogpt": GPT,
    "gpt_neox": WIDE,
    "falcon": replace(
        WIDE,
        norms=(
            ("ln_attn", "input_layernorm"),
            ("ln_mlp", "post_attention_layernorm", "input_layernorm"),
        ),
    ),
    "phi": Block(("mlp.fc1",), "mlp.fc2", (PRE[0], PRE[0]), centred=True),
    "phi3": Block(("mlp.gate_up_proj",), "mlp.down_proj", PRE, fused=True),
}


@dataclass
class Norm:
    """What a norm does after it has normalised: gain (E,), shift (E,) or None; centred: whether it
    took the mean out before.
    """

    gain: Tensor
    shift: Tensor | None
    centred: bool

    def fold(self, W: Float[Tensor, "*rows E"], b: Float[Tensor, "*rows"] | None):
        """The map of what was normalised that W x + b is of the norm's outputs x. Of the rows, what
        reads the mean is gone where there is none. Float64.
        """
        if self.shift is not None:
            b = W @ self.shift if b is None else b + W @ self.shift
        W = W * self.gain
        return (W - W.mean(-1, keepdim=True) if self.centred else W), b


@dataclass
class Mlp:
    """The hidden units of an MLP, float64. gate (F, E) or None, with a bias as one more column; up
    (F, E), likewise; down (F, E).
    """

    gate: Tensor | None
    up: Tensor
    down: Tensor


@dataclass
class Layer:
    """One layer of a checkpoint, as it is stored, and its parts.

    attention: its description. raw: its parameters by the names of `Attention.shapes`, gains too.
    norm, mlp_norm: the Norm that attention and MLP read, None where what it does is seen elsewhere
    too. beside: the tensors beside the attention, and those stored with it that are none of its
    maps. parts: names in `beside` that norms and mlp account for.
    """

    attention: object
    raw: dict
    norm: Norm | None
    mlp: Mlp | None
    beside: dict
    parts: set

    @property
    def dtypes(self):
        """The dtypes of its attention's numbers."""
        return {tensor.dtype for tensor in self.raw.values()}

    @property
    def rest(self):
        """What is neither a map of attention or MLP nor a norm that they take in."""
        return {name: t for name, t in self.beside.items() if name not in self.parts}


def read_block(model, number):
    """Layer `number` of an open model, as a Layer. ValueError naming a tensor, with its place, that
    is not finite, or that is quantised.
    """
    layout, block = model.layout, BLOCKS[model.architecture.model_type]
    attention, stored = model.architecture.layers[number][1], model.layer(number)
    beside = model.beside(number)
    stem = model.block(number)
    for name, tensor in (*model.full_names(number, stored).items(), *beside.items()):
        check_numbers(name if name.startswith(stem) else stem + name, tensor)
    extra = {
        "attention." + name.replace("gamma", "weight").replace("beta", "bias"): stored[name]
        for name in stored.keys() & set(layout.rest)
    }
    raw = read_layer(layout, attention, stored) | read_gains(attention, stored, block.offset)
    norms = [next((n for n in names if f"{n}.weight" in beside), None) for names in block.norms]
    for name, names in zip(norms, block.norms):
        require(
            name or not names, "tensors", f"{stem}{names[-1:]}", "is missing from the checkpoint"
        )
    norm, mlp_norm = (_norm(block, beside, name) for name in norms)
    parts = {f"{name}.{part}" for name in norms if name for part in ("weight", "bias")}
    if block.up:
        parts |= {f"{name}.weight" for name in (*block.up, block.down)}
        parts |= {f"{name}.bias" for name in block.up}
    mlp = _mlp(block, beside, mlp_norm, layout.transposed) if block.up else None
    return Layer(attention, raw, norm, mlp, beside | extra, parts)


def check_numbers(name, tensor):
    """ValueError naming the tensor unless it holds real numbers, all of them finite; one that is
    not is named with its place.
    """
    if not tensor.is_floating_point() or name.endswith(NOT_BESIDE):
        return
    require(
        tensor.dtype in FLOATS,
        name,
        tensor.dtype,
        "must be real numbers: quantised weights are not read",
    )
    wrong = (~tensor.isfinite()).nonzero()
    if len(wrong):
        place = tuple(wrong[0].tolist())
        require(
            False, f"{name}[{', '.join(map(str, place))}]", tensor[place].item(), "must be finite"
        )


# buffers that old files store, which no function of the weights needs
NOT_BESIDE = ("position_ids", *(name for name in NOT_WEIGHTS if name != "bias"))


def read_gains(attention, stored, offset):
    """Gains of normalised queries and keys, by the names of `Attention.shapes`, none where there
    are none; in its order of coordinates.
    """
    found = {}
    for name in ("gain_Q", "gain_K"):
        if name in attention.shapes:
            gain = stored[f"{name[-1].lower()}_norm.weight"] + offset
            gain = gain.view(attention.shapes[name])
            found[name] = gain[..., stored_coordinates(attention)]
    return found


def _norm(block, tensors, name):
    if name is None:
        return None
    shift = tensors.get(f"{name}.bias")
    gain = tensors[f"{name}.weight"].double() + block.offset
    return Norm(gain, None if shift is None else shift.double(), block.centred)


def unit_maps(block, tensors, transposed):
    """The maps of an MLP as they are stored, a row for each hidden unit: "up", with "gate" where
    there is one, and their biases, and "down". Views.
    """
    turn = lambda W: W.T if transposed and W.dim() == 2 else W
    for name in (*block.up, block.down):
        there = f"{name}.weight" in tensors
        require(there, "tensors", f"{name}.weight", "is missing from the checkpoint")
    maps = {}
    for part, end in (("weight", ""), ("bias", ".bias")):
        rows = [turn(tensors[n]) for n in (f"{m}.{part}" for m in block.up) if n in tensors]
        rows = rows[0].chunk(2) if block.fused and rows else rows
        maps |= {kind + end: W for kind, W in zip(("up", "gate"), rows[::-1])}
    return maps | {"down": turn(tensors[f"{block.down}.weight"].T)}


def stored_maps(block, maps, transposed):
    """The inverse of unit_maps: tensors by their names."""
    turn = lambda W: (W.T if transposed and W.dim() == 2 else W).contiguous()
    stored = {f"{block.down}.weight": turn(maps["down"].T)}
    for part, end in (("weight", ""), ("bias", ".bias")):
        rows = [maps[kind + end] for kind in ("gate", "up") if kind + end in maps]
        rows = [torch.cat(rows)] if block.fused and rows else rows
        stored |= {f"{name}.{part}": turn(W) for name, W in zip(block.up, rows)}
    return stored


def _mlp(block, tensors, norm, transposed):
    maps = {kind: W.double() for kind, W in unit_maps(block, tensors, transposed).items()}
    rows = {}
    for kind in {"gate", "up"} & maps.keys():
        W, b = maps[kind], maps.get(f"{kind}.bias")
        W, b = (W, b) if norm is None else norm.fold(W, b)
        rows[kind] = W if b is None else torch.cat((W, b[:, None]), 1)
    return Mlp(rows.get("gate"), rows["up"], maps["down"])


def fold(layer, raw=None):
    """A layer's description and float64 parameters as functions of what its norm has normalised:
    the gain and the shift in its maps. Queries, keys and values then have a bias where the norm has
    a shift. raw: other parameters in place of the layer's.
    """
    p = {name: t.double() for name, t in (layer.raw if raw is None else raw).items()}
    if layer.norm is None:
        return layer.attention, p
    for letter in "QKV":
        W, b = layer.norm.fold(p[f"W_{letter}"], p.get(f"b_{letter}"))
        p |= {f"W_{letter}": W} | ({} if b is None else {f"b_{letter}": b})
    letters = {name[-1].lower() for name in p if name.startswith("b_")}
    return replace(layer.attention, bias="".join(letters)), p
