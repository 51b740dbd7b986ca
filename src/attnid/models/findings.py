"""One comparison of two checkpoints: configuration, tensors outside the layers, and each layer."""

from dataclasses import dataclass

import torch

from ..checks import require
from . import accidents
from .blocks import BLOCKS, NOT_BESIDE, check_numbers, fold, read_block
from .identified import level, nearest_order, roundings
from .moves import count_moves
from .units import match_units, row_distance

# distances, relative, that rounding to a dtype makes of the usual weights; where a head's factors
# are uneven enough for rounding to cost more, more is allowed
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 0.03}

# fields of a configuration that weights do not show and outputs do
FIELDS = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "layer_norm_eps",
    "rms_norm_eps",
    "layer_norm_epsilon",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "attention_multiplier",
    "final_logit_softcapping",
    "sliding_window",
    "use_parallel_residual",
    "parallel_attn",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "num_experts_per_tok",
    "logit_scale",
)
HEADS = ("lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight")
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "embeddings.word_embeddings.weight",
)
SAME_HEAD = "equal to the embedding that the other model ties it to, which changes no output"
IDLE_KEY_BIAS = "that of the key map, which changes no output"


@dataclass(frozen=True)
class Difference:
    """One thing in which two checkpoints differ. layer: its number, None outside the layers. head:
    that of the first checkpoint, None for what heads have together. circuit: which product of the
    head, or "mlp", "configuration" or the name of a tensor. size: the distance relative to the
    larger of both. accident: what explains it, where something known does, else None.
    """

    layer: int | None
    head: int | None
    circuit: str
    size: float
    accident: str | None = None


class Findings:
    """One comparison of two open models, as it goes: what was found so far."""

    def __init__(self, one, other, tolerance):
        self.one, self.other, self.given = one, other, tolerance
        self.differences, self.harmless, self.largest = [], [], 0.0
        self.moved = self.reordered = 0
        self.notes = [*dict.fromkeys((*one.architecture.notes, *other.architecture.notes))]
        self.notes += [
            f"{name}: an adapter is not compared" for name in (*one.adapters, *other.adapters)
        ]
        self.floor = 0.0

    def allowed(self, *dtypes):
        """The tolerance of numbers of these dtypes."""
        least = self.given or max(TOLERANCES[dtype] for dtype in dtypes)
        self.floor = max(self.floor, least)
        return least

    def configurations(self):
        """Fields of the configurations that weights do not show."""
        a, b = (
            model.config | (model.config.get("text_config") or {})
            for model in (self.one, self.other)
        )
        for field in FIELDS:
            if field in a and field in b and a[field] != b[field]:
                words = f"{field}: {a[field]!r} against {b[field]!r}"
                self.differences.append(Difference(None, None, "configuration", 1.0, words))
        layers = (model.architecture.layers for model in (self.one, self.other))
        for number, ((_, x), (_, y)) in enumerate(zip(*layers)):
            for field in ("rotary", "causal", "inputs"):
                if getattr(x, field) != getattr(y, field):
                    words = f"{field} is not the same"
                    self.differences.append(Difference(number, None, "configuration", 1.0, words))

    def outside(self):
        """Tensors that belong to no layer."""
        a, b = self.one.outside(), self.other.outside()
        for name in sorted(a.keys() | b.keys()):
            if name.endswith(HEADS) and not (name in a and name in b and self.one.config):
                self._tied(name, a, b)
            elif name not in a or name not in b:
                self._missing(name, a, b)
            else:
                self._tensor(None, name, self.one.read(a[name]), self.other.read(b[name]))

    def _tied(self, name, a, b):
        if self.one.config == {}:  # nanoGPT's, which are tied and have been seen to be
            return
        sides = []
        for model, names in ((self.one, a), (self.other, b)):
            embedding = next((names[e] for e in EMBEDDINGS if e in names), None)
            classes = model.config.get("architectures") or [""]
            bare = classes[0].endswith("Model") and not classes[0].endswith("LMHeadModel")
            if name not in names and (bare or embedding is None):
                self._missing(name, a, b)
            sides.append(model.read(names.get(name, embedding)))
        kept = len(self.differences)
        self._tensor(None, name, *sides)
        if len(self.differences) > kept:
            self.differences[-1] = Difference(
                None, None, name, self.differences[-1].size, accidents.TIED
            )
        else:
            words = f"{accidents.TIED}: {SAME_HEAD}"
            self.harmless.append(Difference(None, None, name, 0.0, words))

    def _missing(self, name, a, b):
        if not name.endswith(NOT_BESIDE):
            which = "second" if name in a else "first"
            require(False, "tensors", name, f"is not in the {which} checkpoint")

    def _tensor(self, layer, name, a, b):
        for tensor in (a, b):
            check_numbers(name, tensor)
        require(
            a.shape == b.shape, name, tuple(b.shape), f"the first checkpoint has {tuple(a.shape)}"
        )
        if name.endswith(NOT_BESIDE) or not a.is_floating_point():
            return
        allowed = self.allowed(a.dtype, b.dtype)
        size = row_distance(a, b)
        self.largest = max(self.largest, size)
        if size > allowed:
            why = accidents.explain_tensor(a, b, allowed)
            self.differences.append(Difference(layer, None, name, size, why))

    def layer(self, number):
        """Everything of one layer."""
        a, b = (read_block(model, number) for model in (self.one, self.other))
        self._attention(number, a, b)
        self._mlp(number, a, b)
        rest, other = a.rest, b.rest
        for name in sorted(rest.keys() | other.keys()):
            if name.endswith("bias") and not name.endswith(NOT_BESIDE):
                # one that is not there is 0
                there = rest.get(name, other.get(name))
                rest.setdefault(name, torch.zeros_like(there))
                other.setdefault(name, torch.zeros_like(there))
            if name in rest and name in other:
                self._tensor(number, name, rest[name], other[name])
            else:
                self._missing(self.one.block(number) + name, rest, other)

    def _attention(self, number, a, b):
        attention, ours, theirs = accidents.products(a, b)
        floor = self.allowed(*a.dtypes, *b.dtypes)
        allowed = self._allowances(floor, (a, ours), (b, theirs))
        order, apart = nearest_order(attention, ours, theirs, allowed)
        broken = {
            (circuit, head)
            for circuit, sizes in apart.items()
            for head in (sizes > allowed[circuit]).nonzero().flatten().tolist()
        }
        why = accidents.explain(a, b, allowed, broken) if broken else {}
        for circuit, head in sorted(broken):
            size = apart[circuit][head].item()
            of_head = head if len(apart[circuit]) == attention.H else None
            self.differences.append(
                Difference(number, of_head, circuit, size, why.get((circuit, head)))
            )
        self.largest = max(self.largest, *(sizes.max().item() for sizes in apart.values()))
        self._gauge(number, a, b, order, broken, apart)

    def _allowances(self, floor, *sides):
        # circuit -> (H,)
        cost = {}
        for layer, products in sides:
            eps = max(torch.finfo(dtype).eps for dtype in layer.dtypes)
            for circuit, each in roundings(products).items():
                cost[circuit] = cost.get(circuit, 0) + accidents.ROUNDING * eps * each
        if self.given is not None:
            return {circuit: torch.full_like(each, floor) for circuit, each in cost.items()}
        return {circuit: (accidents.ROOM * each).clamp_min(floor) for circuit, each in cost.items()}

    def _gauge(self, number, a, b, order, broken, apart):
        (attention, p), (_, q) = level(fold(a), fold(b))
        eps = max(torch.finfo(dtype).eps for dtype in a.dtypes | b.dtypes)
        whole = {head for circuit, head in broken if len(apart[circuit]) == attention.H}
        biased = {x for x in "KV" if any(f"b_{x}" in layer.raw for layer in (a, b))}
        if any(circuit == "output bias" for circuit, _ in broken):
            biased -= {"V"}
        moves = count_moves(attention, p, q, order, eps, whole, biased)
        self.moved += moves.directions
        self.reordered += int((order != torch.arange(len(order))).sum())
        if moves.key_bias and any(
            not layer.raw["b_K"].any() if "b_K" in layer.raw else True for layer in (a, b)
        ):
            words = f"{accidents.BIAS}: {IDLE_KEY_BIAS}"
            self.harmless.append(Difference(number, None, "key bias", 1.0, words))

    def _mlp(self, number, a, b):
        if a.mlp is None:
            return
        shapes = [tuple(layer.mlp.down.shape) for layer in (a, b)]
        require(shapes[0] == shapes[1], "mlp", shapes[1], f"the first has shape {shapes[0]}")
        names = [f"{name}.weight" for name in BLOCKS[self.one.architecture.model_type].up]
        allowed = self.allowed(*{layer.beside[name].dtype for layer in (a, b) for name in names})
        found = match_units(a.mlp, b.mlp, allowed)
        self.largest = max(self.largest, found.distance)
        if found.distance > allowed:
            coarse = accidents.coarser(a.beside[names[0]], b.beside[names[0]])
            rounded = coarse is not None and found.distance <= torch.finfo(coarse).eps
            why = f"{accidents.ROUNDED}: {coarse}" if rounded else None
            self.differences.append(Difference(number, None, "mlp", found.distance, why))
        else:
            self.reordered += found.moved
