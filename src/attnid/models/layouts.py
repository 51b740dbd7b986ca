"""Where the attention weights lie in a checkpoint: per family the names of the tensors, and how
they hold the heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Int, Shaped
from torch import Tensor

from ..checks import require

NOT_WEIGHTS = (
    "bias",
    "masked_bias",
    "rotary_emb.inv_freq",
)  # masks and angles that old files store with an attention layer
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def by_head(rows: Shaped[Tensor, "rows *rest"], heads: int) -> Shaped[Tensor, "heads d *rest"]:
    """A view of a map's rows, or of its bias, head by head."""
    return rearrange(rows, "(heads d) ... -> heads d ...", heads=heads)


def separate(a, q, k, v):
    """Views of the three maps, or of their biases, which each may lack: None stays None."""
    counted = ((q, a.H), (k, a.G), (v, a.G))
    return tuple(None if rows is None else by_head(rows, heads) for rows, heads in counted)


def in_a_row(a, qkv):
    """Views of one map that makes all queries, then all keys, then all values."""
    return separate(a, *qkv.split([a.H * a.D, a.G * a.D, a.G * a.C]))


def by_group(a, qkv):
    """Views of one map that makes, group by group, its queries, its key and its value."""
    groups = rearrange(qkv, "(g member d) ... -> g member d ...", g=a.G, d=a.D)
    return groups[:, :-2], groups[:, -2], groups[:, -1]


@dataclass(frozen=True)
class Layout:
    """A family's names. prefixes: what may stand before all of them. layer: the attention of layer
    number {}. maps: of queries, keys and values, or one for all, whose rows `arrange` splits into
    views by head. output: of the output map. transposed: weights are (in, out). rest: what else is
    stored with the layer and stays as it is.
    """

    prefixes: tuple
    layer: str
    maps: tuple
    output: str
    arrange: Callable = separate
    transposed: bool = False
    rest: tuple = ()

    def prefix_in(self, names):
        """What stands before the family's names in a file. ValueError where none or more than one
        of the prefixes fits.
        """
        first = f"{self.layer.format(0)}.{self.maps[0]}.weight"
        found = [prefix for prefix in self.prefixes if prefix + first in names]
        require(
            found,
            "tensors",
            first,
            f"is in the checkpoint after none of the prefixes {self.prefixes}",
        )
        require(
            len(found) == 1,
            "tensors",
            first,
            f"is in the checkpoint after each of the prefixes {tuple(found)}",
        )
        return found[0]

    def shapes(self, a):
        """Name, after the layer's, -> shape of every tensor that the attention layer of this
        description has.
        """
        rows = {"q": a.H * a.D, "k": a.G * a.D, "v": a.G * a.C}
        shapes = {}
        for name, made in zip(self.maps, ("q", "k", "v") if len(self.maps) == 3 else ("qkv",)):
            size = (sum(rows[letter] for letter in made), a.E)
            shapes |= self._linear(name, size, set(made) <= set(a.bias))
        shapes |= self._linear(self.output, (a.E, a.H * a.C), "o" in a.bias)
        if a.qk_norm == "head_gain":
            shapes |= {"q_norm.weight": (a.D,), "k_norm.weight": (a.D,)}
        if a.qk_norm == "layer_gain":
            shapes |= {"q_norm.weight": (a.H * a.D,), "k_norm.weight": (a.G * a.D,)}
        if a.score == "sink":
            shapes["sinks"] = (a.H,)
        return shapes

    def _linear(self, name, size, bias):
        shapes = {f"{name}.weight": size[::-1] if self.transposed else size}
        return shapes | ({f"{name}.bias": size[:1]} if bias else {})


LLAMA = Layout(
    ("model.", "", "language_model.model.", "model.language_model."),
    "layers.{}.self_attn",
    ("q_proj", "k_proj", "v_proj"),
    "o_proj",
)
FUSED = partial(Layout, arrange=by_group, maps=("query_key_value",), output="dense")

LAYOUTS = dict.fromkeys(
    (
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3_text",
        "olmo2",
        "gpt_oss",
    ),
    LLAMA,
) | {
    "bert": Layout(
        ("", "bert."),
        "encoder.layer.{}.attention",
        ("self.query", "self.key", "self.value"),
        "output.dense",
        rest=tuple(f"output.LayerNorm.{name}" for name in ("weight", "bias", "gamma", "beta")),
    ),
    "vit": Layout(
        ("", "vit."),
        "encoder.layer.{}.attention",
        ("attention.query", "attention.key", "attention.value"),
        "output.dense",
    ),
    "gpt2": Layout(
        ("", "transformer."), "h.{}.attn", ("c_attn",), "c_proj", in_a_row, transposed=True
    ),
    "nanogpt": Layout(("transformer.",), "h.{}.attn", ("c_attn",), "c_proj", in_a_row),
    "gpt_neox": FUSED(("gpt_neox.", ""), "layers.{}.attention"),
    "falcon": FUSED(("transformer.", ""), "h.{}.self_attention"),
    "phi": Layout(("model.", ""), "layers.{}.self_attn", ("q_proj", "k_proj", "v_proj"), "dense"),
    "phi3": Layout(("model.", ""), "layers.{}.self_attn", ("qkv_proj",), "o_proj", in_a_row),
}


def check_tensors(layout, attention, tensors):
    """ValueError naming a tensor of a layer, short name -> tensor, that is missing, unknown,
    quantised or of another shape.
    """
    shapes = layout.shapes(attention)
    for name, shape in shapes.items():
        require(name in tensors, "tensors", name, "is missing from the checkpoint")
        require(
            tensors[name].dtype in FLOATS,
            name,
            tensors[name].dtype,
            "must be real floating-point numbers: quantised weights are not read",
        )
        require(
            tuple(tensors[name].shape) == shape,
            name,
            tuple(tensors[name].shape),
            f"shape must be {shape}",
        )
    for name in tensors.keys() - shapes.keys() - set(NOT_WEIGHTS) - set(layout.rest):
        require(
            False,
            "tensors",
            name,
            "is in the checkpoint but not in the layer that its configuration describes",
        )


def read_layer(layout, attention, tensors):
    """The parameters of one layer by the names of `Attention.shapes`, from its checked tensors:
    copies, in the file's own dtype.

    Files put the two coordinates of plane i at i and n + i of the n planes that turn; `Attention`
    has them side by side. Gains of queries and keys are not read.
    """
    order = stored_coordinates(attention)
    return {
        name: _reordered(name, view, order).reshape(attention.shapes[name])
        for name, view in _views(layout, attention, tensors).items()
    }


def write_layer(layout, attention, tensors, parameters):
    """Copy parameters, as read_layer gives them, into the tensors of one layer, in place, in their
    own dtype.
    """
    back = stored_coordinates(attention).argsort()
    for name, view in _views(layout, attention, tensors).items():
        view.copy_(_reordered(name, parameters[name].reshape(view.shape), back))


def _views(layout, a, tensors):
    """Views of the stored tensors by the names of `Attention.shapes`; heads of a group may have an
    axis of their own.
    """
    stored = {
        name: tensor.T if layout.transposed and tensor.ndim == 2 else tensor
        for name, tensor in tensors.items()
    }
    weights = [stored[f"{name}.weight"] for name in layout.maps]
    views = dict(zip(("W_Q", "W_K", "W_V"), layout.arrange(a, *weights)))
    views["W_O"] = rearrange(stored[f"{layout.output}.weight"], "e (h c) -> h e c", h=a.H)
    if set("qkv") & set(a.bias):
        biases = [stored.get(f"{name}.bias") for name in layout.maps]
        views |= dict(zip(("b_Q", "b_K", "b_V"), layout.arrange(a, *biases)))
    if "o" in a.bias:
        views["b_O"] = stored[f"{layout.output}.bias"]
    if a.score == "sink":
        views["sink"] = stored["sinks"]
    return {name: view for name, view in views.items() if name in a.shapes}


def stored_coordinates(attention) -> Int[Tensor, "D"]:
    """Where the file has each coordinate of a query or key head."""
    turned = 2 * len(attention.rotary)
    pairs = rearrange(torch.arange(turned), "(half plane) -> (plane half)", half=2)
    return torch.cat((pairs, torch.arange(turned, attention.D)))


COORDINATES = {"W_Q": -2, "W_K": -2, "b_Q": -1, "b_K": -1}  # the axis of those that may turn


def _reordered(name, view, order):
    return view.index_select(COORDINATES[name], order) if name in COORDINATES else view.clone()
