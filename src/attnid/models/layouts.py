"""Where the attention weights lie in a checkpoint: per family the names of the tensors, and how they hold the heads."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ..checks import require

NOT_WEIGHTS = (
    "bias",
    "masked_bias",
    "rotary_emb.inv_freq",
)  # masks and angles that old files store with an attention layer
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def separate(a, q, k, v):
    return q.unflatten(0, (a.H, a.D)), k.unflatten(0, (a.G, a.D)), v.unflatten(0, (a.G, a.C))


def in_a_row(a, qkv):
    """All queries, then all keys, then all values."""
    return separate(a, *qkv.split([a.H * a.D, a.G * a.D, a.G * a.C]))


def by_group(a, qkv):
    """Group by group: its queries, its key, its value."""
    groups = qkv.unflatten(0, (a.G, a.H // a.G + 2, a.D))
    return groups[:, :-2], groups[:, -2], groups[:, -1]


@dataclass(frozen=True)
class Layout:
    """A family's names. prefixes: what may stand before all of them. layer: the attention of layer number {}. maps: of queries, keys
    and values, or one for all, whose rows `arrange` splits into views by head. output: of the output map. transposed: weights are
    (in, out). rest: what else is stored with the layer and stays as it is."""

    prefixes: tuple
    layer: str
    maps: tuple
    output: str
    arrange: Callable = separate
    transposed: bool = False
    rest: tuple = ()

    def prefix_in(self, names):
        """What stands before the family's names in a file. ValueError where none or more than one of the prefixes fits."""
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
        """Name, after the layer's, -> shape of every tensor that the attention layer of this description has."""
        rows = (
            dict(zip(self.maps, (a.H * a.D, a.G * a.D, a.G * a.C)))
            if len(self.maps) == 3
            else {self.maps[0]: (a.H + a.G) * a.D + a.G * a.C}
        )
        letters = dict(zip(self.maps, "qkv" if len(self.maps) == 3 else ["qkv"])) | {
            self.output: "o"
        }
        sizes = {name: (out, a.E) for name, out in rows.items()} | {self.output: (a.E, a.H * a.C)}
        shapes = {
            f"{name}.weight": size[::-1] if self.transposed else size
            for name, size in sizes.items()
        }
        shapes |= {
            f"{name}.bias": size[:1]
            for name, size in sizes.items()
            if set(letters[name]) <= set(a.bias)
        }
        if a.qk_norm:
            gains = (a.D, a.D) if a.qk_norm == "head_gain" else (a.H * a.D, a.G * a.D)
            shapes |= {f"{name}_norm.weight": (size,) for name, size in zip("qk", gains)}
        return shapes | ({"sinks": (a.H,)} if a.score == "sink" else {})


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
    """ValueError naming a tensor of a layer, short name -> tensor, that is missing, unknown, quantised or of another shape."""
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
    """The parameters of one layer by the names of `Attention.shapes`, from its checked tensors: copies, in the file's own dtype.

    Files put the two coordinates of plane i at i and n + i of the n planes that turn; `Attention` has them side by side. Gains
    of queries and keys are not read.
    """
    return {
        name: _reordered(attention, name, view, _order(attention)).reshape(attention.shapes[name])
        for name, view in _views(layout, attention, tensors).items()
    }


def write_layer(layout, attention, tensors, parameters):
    """Copy parameters, as read_layer gives them, into the tensors of one layer, in place, in their own dtype."""
    back = torch.tensor(_order(attention)).argsort().tolist()
    for name, view in _views(layout, attention, tensors).items():
        view.copy_(_reordered(attention, name, parameters[name].reshape(view.shape), back))


def _views(layout, a, tensors):
    stored = {
        name: tensor.T if layout.transposed and tensor.ndim == 2 else tensor
        for name, tensor in tensors.items()
    }
    views = {"W_O": stored[f"{layout.output}.weight"].unflatten(1, (a.H, a.C)).movedim(0, 1)}
    views |= dict(
        zip(
            ("W_Q", "W_K", "W_V"),
            layout.arrange(a, *(stored[f"{name}.weight"] for name in layout.maps)),
        )
    )
    if len(layout.maps) == 3:  # any of the three may lack a bias
        heads = {"q": (a.H, a.D), "k": (a.G, a.D), "v": (a.G, a.C)}
        views |= {
            f"b_{letter.upper()}": stored[f"{name}.bias"].unflatten(0, heads[letter])
            for letter, name in zip("qkv", layout.maps)
            if letter in a.bias
        }
    elif "q" in a.bias:
        views |= dict(
            zip(("b_Q", "b_K", "b_V"), layout.arrange(a, stored[f"{layout.maps[0]}.bias"]))
        )
    if "o" in a.bias:
        views["b_O"] = stored[f"{layout.output}.bias"]
    return views | ({"sink": stored["sinks"]} if a.score == "sink" else {})


def _order(attention):
    # stored coordinate of each coordinate of a query or key head
    planes = len(attention.rotary)
    return [c for i in range(planes) for c in (i, planes + i)] + list(
        range(2 * planes, attention.D)
    )


def _reordered(attention, name, view, order):
    return (
        view.index_select(-1 if name[0] == "b" else -2, torch.tensor(order))
        if name[2:] in ("Q", "K")
        else view.clone()
    )
