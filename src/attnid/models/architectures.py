"""The attention layers of a model that people have, from its config.json, and their counts, added
up.
"""

import json
import math
import os
import textwrap
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from ..checks import require
from ..files import read_json
from ..layer.counting import Count, count
from ..layer.latents import LatentAttention
from .configurations import Fields
from .defaults import ALIASES, DEFAULTS
from .families import FAMILIES
from .stacks import Stack

# their language model is an ordinary one, described in text_config: of this model_type where it
# does not say
WRAPPERS = {"gemma3": "gemma3_text", "llava": "llama", "mistral3": "mistral"}
CIRCUITS = ("query-key", "value-output", "latents")
ALWAYS = "inputs are taken as free: what the norm before a layer hides belongs to the whole network"
NO_EPSILON = (
    "the epsilon of the norms of queries, keys or latents is taken as 0; a real one "
    "leaves the scale directions nearly idle"
)


@dataclass(frozen=True)
class Architecture:
    """A model's attention layers: `layers` is a Stack, a sequence of one (kind, description) for
    each, first layer first, where a description is an `Attention` or a `LatentAttention`. `notes`
    say what was taken for granted.

    >>> bert = read_architecture({"model_type": "bert"})
    >>> len(bert.layers), bert.total.unidentified
    (12, 1198080)
    """

    name: str
    model_type: str
    layers: Stack
    notes: tuple = ()

    @property
    def kinds(self):
        """(kind, description) -> how many layers are so, in the order in which they first occur."""
        return dict(self.layers.numbers)

    @property
    def total(self):
        """The Count of all attention layers together. Symmetries of different layers do not mix, so
        counts add up.
        """
        return add_up((count_layer(layer), number) for (_, layer), number in self.kinds.items())


def read_architecture(source):
    """The Architecture that a Hugging Face configuration describes: a config.json, a folder with
    one, or its fields as a dict.

    A field that is absent has the default of the class of transformers that loads the model, and a
    note says so where it is one of `defaults.DEFAULTS`. The time does not depend on how many layers
    there are. ValueError naming the field that is impossible, null or not described here, and for
    any model_type that is not in `families.FAMILIES`: no layer is ever counted as if it were a
    plain one. FileNotFoundError where there is no file.

    >>> fields = {"model_type": "llama", "num_key_value_heads": 8, "num_hidden_layers": 2}
    >>> model = read_architecture(fields)
    >>> kind, layer = model.layers[0]
    >>> kind, layer.embed_dim, layer.kv_heads, model.total.unidentified
    ('self', 4096, 8, 264192)
    """
    config, name = (source, None) if isinstance(source, dict) else _load(source)
    config, notes = _language_model(config)
    model_type = config.get("model_type")
    require(
        isinstance(model_type, str) and model_type in FAMILIES,
        "model_type",
        model_type,
        f"is not one of {', '.join(FAMILIES)}",
    )
    aliases = ALIASES.get(model_type, {})
    meant = {aliases[name]: value for name, value in config.items() if name in aliases}
    fields = Fields(config | meant, DEFAULTS[model_type])
    layers = FAMILIES[model_type](fields)
    notes += fields.notes + [ALWAYS] + [NO_EPSILON] * any(map(_has_norm, layers.numbers))
    return Architecture(
        str(name or config.get("_name_or_path") or model_type), model_type, layers, tuple(notes)
    )


def _language_model(config):
    """The fields of the language model, and notes: those in text_config where the model is a
    wrapper around one.
    """
    outer, inner = config.get("model_type"), config.get("text_config")
    if not isinstance(outer, str) or outer not in WRAPPERS:
        return config, []
    require(isinstance(inner, dict), "text_config", inner, f"is what a {outer} is read from")
    named = {"_name_or_path": config.get("_name_or_path"), "model_type": WRAPPERS[outer]}
    return named | inner, ["only the language model is counted, not what reads images"]


def load_atlas():
    """The published configurations of the atlas, oldest first: dicts with name, released
    ("year-month"), repository (on the Hugging Face hub) and config, which holds the fields of its
    config.json that bear on attention.
    """
    return json.loads(Path(__file__).with_name("atlas.json").read_text(encoding="utf-8"))


def _load(source):
    require(isinstance(source, (str, os.PathLike)), "source", source, "must be a path or a dict")
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    return read_json(path), path.parent.name if path.name == "config.json" else path.stem


def _has_norm(kind_and_layer):
    _, layer = kind_and_layer
    return isinstance(layer, LatentAttention) or layer.qk_norm is not None


@cache
def count_layer(layer):
    """The Count of one description, latent or not."""
    return count(layer)


def add_up(counts):
    """One Count of (Count, how many) pairs."""
    parameters, terms = 0, {}
    for each, number in counts:
        parameters += number * each.parameters
        for name, dimension in each.terms.items():
            terms[name] = terms.get(name, 0) + number * dimension
    return Count(parameters, terms)


# which circuit a parameter or a term of a count belongs to, where it is not queries and keys. What
# makes a latent stands apart:
# both circuits may read it
LATENT_NAMES = {"W_DQ", "gain_DQ", "W_DKV", "gain_DKV", "query latent", "key-value latent"}
VALUE_NAMES = {"W_V", "b_V", "W_O", "b_O", "W_G", "value-output maps", "value bias"}
VALUE_NAMES |= {"channel scales"}


def circuit_of(name):
    """The circuit that a parameter or a term of a count belongs to."""
    if name in LATENT_NAMES:
        return "latents"
    return "value-output" if name in VALUE_NAMES else "query-key"


def circuits(layer):
    """Circuit -> Count of one description: the parameters and the terms that belong to it."""
    parts = {}
    for circuit in CIRCUITS if isinstance(layer, LatentAttention) else CIRCUITS[:2]:
        shapes = [shape for name, shape in layer.shapes.items() if circuit_of(name) == circuit]
        terms = {
            name: d for name, d in count_layer(layer).terms.items() if circuit_of(name) == circuit
        }
        parts[circuit] = Count(sum(map(math.prod, shapes)), terms)
    return parts


def describe(layer):
    """One description in a line."""
    if isinstance(layer, LatentAttention):
        queries = (
            "no query latent" if layer.query_rank is None else f"query latent {layer.query_rank}"
        )
        return (
            f"E={layer.embed_dim} H={layer.heads} key-value latent {layer.kv_rank}, {queries}, "
            f"heads {layer.still_dim} still + "
            f"{2 * len(layer.rotary)} turned, values {layer.value_dim}"
        )
    words = [f"E={layer.E} H={layer.H} G={layer.G} D={layer.D}"]
    if layer.rotary:
        words.append(f"{2 * len(layer.rotary)} of {layer.D} coordinates turn")
    if layer.bias:
        words.append(f"biases {layer.bias}")
    if layer.qk_norm:
        words.append(f"qk_norm {layer.qk_norm}")
    if layer.score != "softmax":
        words.append(f"score {layer.score}")
    if layer.relative:
        words.append(f"{layer.span} learned offsets ({layer.relative})")
    if layer.gate:
        words.append(f"gate per {layer.gate}")
    if not layer.causal:
        words.append("not causal")
    return ", ".join(words)


def _numbers(counted):
    return {
        "parameters": counted.parameters,
        "unidentified": counted.unidentified,
        "share_identified": counted.share,
        "terms": dict(counted.terms),
    }


def report(architecture):
    """All the numbers of the table as plain data: what `python -m attnid count --json` prints."""
    rows = [
        {
            "kind": kind,
            "layers": number,
            "description": asdict(layer) | {"rotary": list(layer.rotary)},
            "layer": _numbers(count_layer(layer)),
            "circuits": {circuit: _numbers(part) for circuit, part in circuits(layer).items()},
        }
        for (kind, layer), number in architecture.kinds.items()
    ]
    parts = [(circuits(layer), number) for (_, layer), number in architecture.kinds.items()]
    whole = {
        circuit: add_up((each[circuit], number) for each, number in parts if circuit in each)
        for circuit in CIRCUITS
    }
    return {
        "name": architecture.name,
        "model_type": architecture.model_type,
        "notes": list(architecture.notes),
        "kinds": rows,
        "total": _numbers(architecture.total),
        "circuits": {c: _numbers(part) for c, part in whole.items() if part.parameters},
    }


def _lines(title, whole, parts):
    yield title, f"{'parameters':>16}{'unidentified':>15}{'identified':>12}   because of"
    for name, numbers in {**parts, "together": whole}.items():
        because = (
            ", ".join(f"{term} {n:,}" for term, n in numbers["terms"].items())
            if name != "together"
            else ""
        )
        yield (
            f"  {name}",
            (
                f" {numbers['parameters']:15,} {numbers['unidentified']:14,}"
                f"{100 * numbers['share_identified']:11.3f}%   {because}"
            ).rstrip(),
        )


def count_table(architecture):
    """The counts as a table of text: one layer of each kind, all layers, and what was taken for
    granted.
    """
    data, lines = report(architecture), []
    for row, (_, layer) in zip(data["kinds"], architecture.kinds):
        lines += [
            ("", f"{row['kind']}, {row['layers']} layers: {describe(layer)}"),
            *_lines("one layer", row["layer"], row["circuits"]),
        ]
    lines += [("", ""), *_lines("all layers", data["total"], data["circuits"])]
    body = [f"{left:14}{right}" if left else right for left, right in lines]
    head = (
        f"{architecture.name} ({architecture.model_type}), {len(architecture.layers)} "
        f"attention layers"
    )
    notes = [f"note: {note}" for note in architecture.notes]
    wrapped = lambda lines, indent: [
        textwrap.fill(line, 88, subsequent_indent=" " * indent) for line in lines
    ]
    return "\n".join([head, "", *wrapped(body, 61), "", *wrapped(notes, 6)])
