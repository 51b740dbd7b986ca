"""A field that is not in a file stands for what the class of transformers has."""

import copy

import pytest
import real_layers as real
from real_layers import LLAMA, layer_of

from attnid.models.architectures import read_architecture
from attnid.models.defaults import ALIASES, DEFAULTS
from attnid.models.families import FAMILIES


def test_fields_that_published_files_leave_out_are_those_of_transformers_and_noted():
    inner = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    gemma = read_architecture({"model_type": "gemma3", "text_config": inner})
    (sliding, a), (full, b) = gemma.kinds
    assert (a.H, a.G, a.D, sliding, full) == (8, 4, 256, "sliding", "full")
    assert a.rotary[1] == pytest.approx(1e4 ** (-1 / 128)) and b.rotary[1] == pytest.approx(
        1e6 ** (-1 / 128)
    )
    assert list(gemma.kinds.values()) == [29, 5] and [kind for kind, _ in gemma.layers[:6]] == [
        "sliding"
    ] * 5 + ["full"]
    assert sum("as in transformers" in note for note in gemma.notes) == 4
    assert layer_of(LLAMA | {"model_type": "qwen3", "num_key_value_heads": 2}, "self").D == 128


def class_of(config):
    """The configuration class of transformers that loads a model of this type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[config["model_type"]]


def layers_of(config):
    """The layers that a configuration describes and how many are so; None where it is refused."""
    try:
        return read_architecture(config).layers.numbers
    except ValueError:
        return None


def filled_in(config):
    """The configuration with every field as the class has it; None where the class refuses it."""
    try:
        loaded = class_of(config)(**copy.deepcopy(config))
    except ValueError:
        return None
    return loaded.to_dict() | {name: getattr(loaded, name) for name in config}


BARE = {f"{name}, bare": ({"model_type": name}, None) for name in FAMILIES}


@pytest.mark.parametrize("name", real.CASES | BARE)
def test_an_absent_field_has_the_default_of_the_class_that_loads_the_model(name):
    """Whichever field is left out: what the class fills in is read as the file without it, or both refuse."""
    config, _ = (real.CASES | BARE)[name]
    for left_out in config:
        fields = {key: value for key, value in config.items() if key != left_out}
        fields["model_type"] = config["model_type"]
        filled = filled_in(fields)
        assert layers_of(fields) == (filled and layers_of(filled)), left_out


def test_each_default_is_that_of_the_class():
    for name, defaults in DEFAULTS.items():
        loaded = class_of({"model_type": name})()
        assert {field: getattr(loaded, field) for field in defaults} == defaults
    assert DEFAULTS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_each_other_name_of_a_field_is_that_of_the_class(name):
    theirs = dict(class_of({"model_type": name}).attribute_map)
    ours = dict(ALIASES.get(name, {}))
    assert ours.pop("n_embed", None) == ("hidden_size" if name == "falcon" else None)
    assert {other: field for other, field in theirs.items() if field in DEFAULTS[name]} == ours
    for other, field in ALIASES.get(name, {}).items():
        fields = {"model_type": name, field: 24, other: 48}
        assert getattr(class_of(fields)(**fields), field) == 48
        assert layers_of(fields) == layers_of({"model_type": name, field: 48})


FOUND_ABSENT = [
    (
        {
            "model_type": "gemma2",
            "hidden_size": 12,
            "num_attention_heads": 8,
            "head_dim": 4,
            "num_hidden_layers": 1,
            "rope_theta": 100.0,
        },
        (1, 1152, 80),
    ),
    (
        {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}},
        (32, 2147483648, 16908288),
    ),
    ({"model_type": "llava", "text_config": {"vocab_size": 32064}}, (32, 2147483648, 16908288)),
]


@pytest.mark.parametrize("config, expected", FOUND_ABSENT)
def test_configurations_with_absent_fields_are_counted(config, expected):
    """The first two were found wrong or refused; the first was upheld by the rank of the real module's Jacobian."""
    found = read_architecture(config)
    total = found.total
    assert (len(found.layers), total.parameters, total.unidentified) == expected
