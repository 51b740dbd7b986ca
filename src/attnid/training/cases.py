"""The paper's experiments: presets, which say how large a run is, and cases, which say what is done
to the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from ..layer.rebalancing import rebalance
from ..network.gpt import GPT, head_weights, query_key, set_head_weights
from .parametrisations import canonical_gpt, cut_gpt, factored_gpt, shrunk_gpt
from .products import product_gpt, return_to_rank
from .recall import line_length
from .steps import horizontal_steps


@dataclass(frozen=True)
class Preset:
    """How large a run is: a corpus by name, the model's sizes, steps, and how often it is measured
    (None for never), evaluated and moved. What it says of training goes before what a case says.

    It is evaluated on random windows of the validation text; or, where `half` is 0 or 1, on all
    windows of its first or second half, counting the positions that have `context` earlier ones.
    """

    corpus: str
    model: dict
    training: dict
    measure_every: int | None = 10
    evaluate_every: int = 500
    move_every: int = 200
    half: int | None = None
    context: int = 0

    def judged(self, val):
        """The part of the validation tokens (n,) that runs are judged by."""
        return val if self.half is None else val.chunk(2)[self.half]


LAPTOP = dict(block_size=64, n_layer=4, n_head=4, n_embd=128)
SMOKE = dict(block_size=32, n_layer=2, n_head=2, n_embd=16)
PAPER = dict(block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2)
PRESETS = {
    "smoke": Preset("embedded", SMOKE, dict(steps=100, batch_size=8, warmup=10), 5, 50, 20),
    "laptop": Preset("tiny_shakespeare", LAPTOP, dict(steps=2000, batch_size=12)),
    "comparison": Preset("tiny_shakespeare", LAPTOP, dict(steps=2000, batch_size=12), None),
    "paper": Preset("tiny_shakespeare", PAPER, dict(steps=5000, batch_size=64)),
}

# where parameters count: few of them, half a million tokens each, no decay, so that the loss is one
# of the function alone
NARROW = dict(block_size=64, n_layer=2, n_head=1, n_embd=32, mlp_width=64)
PILOT = Preset(
    "tiny_shakespeare",
    NARROW,
    dict(steps=4000, batch_size=16, weight_decay=0.0),
    measure_every=None,
    half=0,
)
MOMENTUM = dict(optimizer="sgd", momentum=0.9)
PRESETS |= {
    "pilot": PILOT,
    "pilot-decay": replace(PILOT, training=PILOT.training | {"weight_decay": 0.1}),
    "pilot-momentum": replace(PILOT, training=PILOT.training | MOMENTUM),
    "pilot-recall": replace(PILOT, corpus="recall", context=line_length()),
    "pilot-embedded": replace(PILOT, corpus="embedded"),
    "study": replace(PILOT, half=1),  # what confirms: judged by text that nothing was tuned on
}


@dataclass(frozen=True)
class Case:
    """What a run does: its optimizer's settings, and what happens to the weights every `move_every`
    steps.

    move(model, optimizer) is that event. model holds the sizes that are not the preset's, or makes
    them from the preset's; build(config, seed) makes the model; prepare(model, optimizer) is called
    before the first step, and may change what steps do; observe(model, part, gradient=) gives the
    factors whose head metrics are measured, None for none of them. Another parametrisation of
    attention is another case.
    """

    title: str
    training: dict
    move: Callable | None = None
    model: dict | Callable = field(default_factory=dict)
    build: Callable = GPT
    prepare: Callable | None = None
    observe: Callable | None = query_key

    def sizes(self, preset):
        """The model's sizes that are not the preset's."""
        return self.model(preset.model) if callable(self.model) else self.model


def rebalance_model(model, optimizer, *, moments="cleared"):
    """Rebalance every head of a GPT in place, biases included. The optimizer's moments of the fused
    maps are then "cleared", as in the paper, or "kept", which leaves them pointing along axes that
    the weights have left.
    """
    names = ("W_Q", "W_K", "b_Q", "b_K") if model.config.bias else ("W_Q", "W_K")
    for layer in range(model.config.n_layer):
        weights = head_weights(model, layer)
        balanced = rebalance(*(weights[name] for name in names))
        set_head_weights(model, layer, **dict(zip(names, balanced)))
    if moments == "cleared":
        clear_moments(model, optimizer)


def clear_moments(model, optimizer):
    """Forget what the optimizer remembers of the fused query-key-value maps: its moments and its
    count of steps.
    """
    for block in model.transformer.h:
        for parameter in block.attn.c_attn.parameters():
            optimizer.state.pop(parameter, None)


def wider_mlp(sizes):
    """D more hidden units in each MLP: nearly as many numbers as a canonical form takes from an
    attention layer, 2 E (D + 1) with biases.
    """
    width = sizes.get("mlp_width", 4 * sizes["n_embd"])
    return {"mlp_width": width + sizes["n_embd"] // sizes["n_head"]}


ADAMW = dict(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1)
SGD = dict(optimizer="sgd", learning_rate=0.25, weight_decay=0.0)
PAPER_CASES = {
    "sgd": Case("SGD", SGD),
    "sgd-decay": Case("SGD with decay", SGD | {"weight_decay": 4e-4}),
    "adamw": Case("AdamW", ADAMW),
    "rebalanced": Case("AdamW, rebalanced", ADAMW, rebalance_model),
    "cleared": Case("AdamW, state cleared", ADAMW, clear_moments),
    "moved": Case("AdamW, rebalanced, state kept", ADAMW, partial(rebalance_model, moments="kept")),
}
UNMEASURED = partial(Case, training=ADAMW, observe=None)
CASES = PAPER_CASES | {
    "canonical": UNMEASURED("AdamW, canonical layers", build=canonical_gpt),
    "spent": UNMEASURED("AdamW, canonical layers, wider MLP", build=canonical_gpt, model=wider_mlp),
    "factored": UNMEASURED("AdamW, factored maps", build=factored_gpt),
    "unheld": UNMEASURED(
        "AdamW, canonical start, nothing held", build=partial(canonical_gpt, hold=False)
    ),
    "horizontal": UNMEASURED("AdamW, steps across orbits", prepare=horizontal_steps),
    "cut": UNMEASURED("AdamW, narrower MLP", build=cut_gpt),
    "product": UNMEASURED("AdamW on the products", build=product_gpt, prepare=return_to_rank),
}
for n in (1, 4):
    more = partial(factored_gpt, dose=n)
    CASES[f"factored-{n}"] = UNMEASURED(f"AdamW, {n} D^2 more idle numbers a head", build=more)
for n in (16, 48, 56):
    fewer = partial(shrunk_gpt, mlp_width=n)
    CASES[f"mlp-{n}"] = UNMEASURED(f"AdamW, {n} units in each MLP", build=fewer)
for n in (8, 16, 24):
    fewer = partial(shrunk_gpt, head_dim=n)
    CASES[f"width-{n}"] = UNMEASURED(f"AdamW, heads of width {n}", build=fewer)
for n in (1, 2, 8, 16, 32):
    CASES[f"heads-{n}"] = UNMEASURED(f"AdamW, {n} heads", model={"n_head": n})
RATES = (0.5, 0.25, 0.125, 0.0625)  # the paper's sweep, of case "sgd"
