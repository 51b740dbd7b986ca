import copy
import json
import re
import subprocess
import sys
import time
from collections import Counter

import pytest
import real_layers as real
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid import Attention, count
from attnid.__main__ import main
from attnid.layer.latents import LatentAttention, count_latent, forward_latent
from attnid.layer.measuring import cut
from attnid.models.architectures import (
    add_up,
    circuits,
    count_layer,
    count_table,
    load_atlas,
    read_architecture,
    report,
)
from attnid.models.configurations import Fields, rotary_angles
from attnid.models.defaults import ALIASES, DEFAULTS
from attnid.models.families import FAMILIES
from attnid.models.stacks import Stack

ATLAS = load_atlas()
LLAMA = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}


def layer_of(config, kind):
    return dict(read_architecture(config).layers)[kind]


@pytest.mark.parametrize("name", real.CASES)
def test_a_family_counts_what_its_real_module_shows(monkeypatch, name):
    config, kind = real.CASES[name]
    described, module = layer_of(config, kind), real.build(config, kind)
    real.in_double(monkeypatch, module)
    real.fill(module, seed=0)
    spectrum = real.spectrum(module, described.embed_dim)
    rank, gap = cut(spectrum)
    assert len(spectrum) == count_layer(described).parameters
    assert len(spectrum) - rank == count_layer(described).unidentified
    assert gap > 1e6


def test_every_family_is_measured():
    assert {config["model_type"] for config, _ in real.CASES.values()} == set(FAMILIES)


def test_an_epsilon_leaves_the_scales_of_normalised_queries_and_keys_nearly_idle(monkeypatch):
    config, kind = real.CASES["qwen3"]
    described, module = layer_of(config, kind), real.build(config, kind)
    terms, parameters = count_layer(described).terms, described.parameters
    scales, rest = (
        terms["query scales"] + terms["key scales"],
        terms["value-output maps"] + terms["gain exchange"],
    )
    real.in_double(monkeypatch, module)
    found = {}
    for eps in (1e-7, 1e-6):
        real.fill(module, seed=0, eps=eps)
        spectrum = real.spectrum(module, described.embed_dim)
        spectrum = spectrum / spectrum[0]
        assert (spectrum[parameters - rest :] < 1e-13).all() and spectrum[
            parameters - rest - scales - 1
        ] > 1e-4
        found[eps] = spectrum[parameters - rest - scales : parameters - rest]
    assert (1e-10 < found[1e-6]).all() and (found[1e-6] < 1e-5).all()
    torch.testing.assert_close(found[1e-6], 10 * found[1e-7], rtol=1e-2, atol=0)


@pytest.mark.parametrize("entry", ATLAS, ids=[entry["name"] for entry in ATLAS])
def test_published_configurations_have_as_many_parameters_as_the_real_modules(entry):
    architecture = read_architecture(entry["config"])
    for (kind, described), _ in architecture.kinds.items():
        with torch.device("meta"):
            module = real.build(real.one_layer(entry["config"], kind), kind)
        assert sum(p.numel() for p in module.parameters()) == described.parameters


def test_the_atlas_is_in_order_and_without_doubles():
    assert [entry["released"] for entry in ATLAS] == sorted(entry["released"] for entry in ATLAS)
    assert (
        len({entry["repository"] for entry in ATLAS})
        == len({entry["name"] for entry in ATLAS})
        == len(ATLAS)
        >= 30
    )
    assert all(re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", entry["released"]) for entry in ATLAS)


SCALINGS = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 4096,
    },
    "yarn, not truncated": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1 + i / 7 for i in range(32)],
        "long_factor": [2.0] * 32,
        "factor": 4.0,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
def test_planes_turn_as_in_transformers(name):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = SCALINGS[name]
    theirs = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_theta=150000.0,
        rope_scaling=scaling,
    )
    kind = "default" if scaling is None else scaling.get("rope_type", scaling.get("type"))
    expected = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")[0]
    ours = rotary_angles(
        Fields({"max_position_embeddings": 4096}),
        64,
        150000.0,
        None if scaling is None else Fields(scaling),
    )
    torch.testing.assert_close(
        torch.tensor(ours), expected, rtol=1e-5, atol=0
    )  # theirs are float32


@pytest.mark.parametrize(
    "fields, sizes",
    [
        ({}, (32, 4, 4, 8)),
        ({"head_dim": None}, (32, 4, 4, 8)),
        ({"head_dim": 12}, (32, 4, 4, 12)),
        ({"num_key_value_heads": None}, (32, 4, 4, 8)),
        ({"num_key_value_heads": 2}, (32, 4, 2, 8)),
        ({"num_attention_heads": 5, "head_dim": 6}, (32, 5, 5, 6)),
    ],
)
def test_fields_that_are_missing_or_null(fields, sizes):
    layer = layer_of(LLAMA | fields, "self")
    assert (layer.E, layer.H, layer.G, layer.D) == sizes and len(
        read_architecture(LLAMA).layers
    ) == 2


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


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"hidden_size": 256, "num_attention_heads": 2, "rope_theta": 1e9}, (262144, 33024)),
        (
            {
                "hidden_size": 10,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 8,
                "rope_theta": 1e13,
            },
            (480, 72),
        ),
        ({"rope_theta": 1e30}, (4 * 32 * 32, 4 * (8 + 8**2))),
    ],
)
def test_slow_planes_are_planes(fields, expected):
    """Real bases go to 1e9 and beyond; the second was upheld by the rank of the real module's Jacobian at positions far apart."""
    total = read_architecture(LLAMA | {"num_hidden_layers": 1} | fields).total
    assert (total.parameters, total.unidentified) == expected


def test_reading_and_counting_a_configuration_needs_no_library():
    script = (
        "import sys; from attnid.models.architectures import load_atlas, read_architecture, count_table\n"
        "[count_table(read_architecture(entry['config'])) for entry in load_atlas()]\n"
        "print(sorted({'torch', 'numpy', 'scipy', 'safetensors', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# ---- depth


@pytest.mark.parametrize(
    "fields, numbers",
    [
        ({"model_type": "llama"}, [10**8]),
        ({"model_type": "gpt2", "n_layer": 10**8}, [10**8]),
        ({"model_type": "gemma2"}, [10**8 // 2, 10**8 // 2]),
        ({"model_type": "gemma3_text"}, [83_333_334, 16_666_666]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 10**7}, [10**8 - 10, 10]),
        ({"model_type": "whisper", "encoder_layers": 10**8, "decoder_layers": 3}, [10**8, 3, 3]),
        ({"model_type": "deepseek_v3"}, [10**8]),
        ({"model_type": "llama", "num_hidden_layers": 2**63 - 1}, [2**63 - 1]),
    ],
)
def test_depth_costs_nothing(fields, numbers):
    start = time.process_time()
    found = read_architecture({"num_hidden_layers": 10**8} | fields)
    data, text = report(found), count_table(found)
    assert time.process_time() - start < 1  # 0.02 s when idle; a list of the layers takes minutes
    assert list(found.kinds.values()) == numbers and len(found.layers) == sum(numbers)
    assert sum(row["layers"] for row in data["kinds"]) == sum(numbers)
    assert f"{found.total.parameters:,} " in text
    assert found.layers[-1] in found.kinds and found.layers.count(found.layers[0]) == numbers[0]


def test_more_layers_than_a_sequence_can_number_are_refused():
    with pytest.raises(ValueError, match=f"^layers={3 * 2**62}: are more than can be numbered"):
        read_architecture(
            {"model_type": "whisper", "encoder_layers": 2**62, "decoder_layers": 2**62}
        )


nested = st.recursive(
    st.sampled_from("abc"), lambda inner: st.lists(st.tuples(inner, st.integers(0, 3)), max_size=3)
)


def stack_and_list(parts):
    """The same layers as a Stack and one by one."""
    if isinstance(parts, str):
        return parts, [parts]
    both = [(stack_and_list(part), times) for part, times in parts]
    stack = Stack(tuple((part, times) for (part, _), times in both))
    return stack, [layer for (_, listed), times in both for layer in listed * times]


@settings(max_examples=50)
@given(st.lists(st.tuples(nested, st.integers(0, 3)), max_size=3))
def test_a_stack_is_the_sequence_that_it_abbreviates(parts):
    stack, listed = stack_and_list(parts)
    assert list(stack) == listed == [stack[i] for i in range(len(stack))] == list(Stack.of(listed))
    assert [stack[-i - 1] for i in range(len(stack))] == listed[::-1]
    assert stack[1:4] == tuple(listed[1:4]) and stack[::-2] == tuple(listed[::-2])
    assert stack.numbers == dict(Counter(listed)) and list(stack.numbers) == list(Counter(listed))
    with pytest.raises(IndexError):
        stack[len(listed)]


def test_falcon_7b_has_one_key_head_whatever_num_kv_heads_says():
    fields = {
        "model_type": "falcon",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_kv_heads": 4,
    }
    layouts = (
        {},
        {"multi_query": False},
        {"new_decoder_architecture": True},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
    )
    assert [layer_of(fields | layout, "self").G for layout in layouts] == [1, 4, 4, 2]


@pytest.mark.parametrize(
    "model_type, old, new",
    [
        ("llama", {"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            "gpt_neox",
            {"rotary_pct": 0.5, "rotary_emb_base": 100},
            {"rope_theta": 100, "partial_rotary_factor": 0.5},
        ),
        (
            "gemma3_text",
            {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
            {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
        ),
    ],
)
def test_new_files_keep_the_rotation_in_rope_parameters(model_type, old, new):
    named = LLAMA | {"model_type": model_type}
    assert (
        read_architecture(named | old).layers
        == read_architecture(named | {"rope_parameters": new}).layers
    )


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"model_type": None}, "model_type=None"),
        ({"model_type": "mamba"}, "model_type='mamba'"),
        ({"model_type": ["llama"]}, "model_type="),
        ({"model_type": "llava"}, "text_config=None"),
        ({"model_type": "llava", "text_config": {"model_type": "mpt"}}, "model_type='mpt'"),
        ({"hidden_size": None}, "hidden_size=None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"hidden_size": 32.0}, "hidden_size=32.0"),
        ({"num_attention_heads": True}, "num_attention_heads=True"),
        ({"num_attention_heads": 5}, "hidden_size=32"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"rope_theta": "1e4"}, "rope_theta='1e4'"),
        ({"rope_theta": 1}, "rope_theta=1.0"),
        ({"rope_theta": 1 + 2**-52}, "rope_theta=1.0000000000000002: makes planes"),
        ({"rope_theta": 10**400}, "rope_theta=10+: must be a positive number"),
        ({"attention_bias": "no"}, "attention_bias='no'"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_type='mrope'"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear'"),
        ({"rope_scaling": {"type": "linear"}}, "factor=None"),
        ({"rope_scaling": {"type": "su", "short_factor": [1]}}, "short_factor"),
        ({"rope_scaling": {"type": ["su"]}}, "rope_type="),
        (
            {"model_type": "bert", "position_embedding_type": "relative_key"},
            "position_embedding_type='relative_key'",
        ),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm=True"),
        ({"model_type": "phi", "partial_rotary_factor": 2}, "partial_rotary_factor=2"),
        (
            {"model_type": "gemma2", "num_key_value_heads": 2, "layer_types": ["full_attention"]},
            "layer_types=",
        ),
        ({"model_type": "mistral", "sliding_window": 1}, "sliding_window=1"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": None}, "kv_lora_rank=None"),
        ({"model_type": "qwen3"}, "num_key_value_heads=32: does not divide"),
        ({"model_type": "deepseek_v3", "attention_bias": True}, "attention_bias=True"),
    ],
)
def test_what_cannot_be_read_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        read_architecture(LLAMA | fields)


def test_files_and_folders(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_architecture(tmp_path) == read_architecture(str(tmp_path / "config.json"))
    assert (
        read_architecture(tmp_path).name == tmp_path.name
        and read_architecture(LLAMA).name == "llama"
    )
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for name in ("bad.json", "list.json"):
        with pytest.raises(ValueError, match="path="):
            read_architecture(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_architecture(tmp_path / "none")
    with pytest.raises(ValueError, match="source=3"):
        read_architecture(3)


def latent_nullity(layer, *, batch=12, length=10):
    """The nullity of the Jacobian of our own forward pass of latent attention, and its gap."""
    x = torch.randn(
        batch,
        length,
        layer.embed_dim,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    J = torch.func.jacrev(lambda p: forward_latent(layer, p, x))(layer.random_parameters())
    rank, gap = cut(
        torch.linalg.svdvals(
            torch.cat([J[name].flatten(0, 2).flatten(1) for name in layer.shapes], 1)
        )
    )
    return layer.parameters - rank, gap


@pytest.mark.parametrize(
    "layer",
    [
        LatentAttention(8, 2, 4, 2, rotary=(1.0, 0.3), query_rank=5),
        LatentAttention(8, 3, 4, 3, 2, rotary=(1.0,)),
        LatentAttention(6, 2, 5, 3, 2, rotary=(1.0,), query_rank=6),
        LatentAttention(6, 2, 3, 4, 5, rotary=(1.0,), query_rank=2),
        LatentAttention(6, 1, 2, 1, query_rank=3),
    ],
)
def test_the_count_of_latent_attention_is_what_is_measured(layer):
    nullity, gap = latent_nullity(layer)
    assert count_latent(layer).unidentified == nullity and gap > 1e6


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(embed_dim=4, heads=2, kv_rank=5, still_dim=2), "kv_rank=5"),
        (dict(embed_dim=4, heads=2, kv_rank=1, still_dim=2), "kv_rank=1"),
        (dict(embed_dim=4, heads=2, kv_rank=2, still_dim=2, query_rank=5), "query_rank=5"),
        (dict(embed_dim=4, heads=0, kv_rank=2, still_dim=2), "heads=0"),
        (dict(embed_dim=4, heads=2, kv_rank=2, still_dim=2, rotary=(1.0, 1.0)), "rotary"),
        (dict(embed_dim=4, heads=2, kv_rank=2, still_dim=2, rotary=(0.0,)), "rotary"),
    ],
)
def test_impossible_latents_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        LatentAttention(**fields)


def test_published_totals():
    totals = {
        entry["name"]: read_architecture(entry["config"]).total.unidentified for entry in ATLAS
    }
    assert totals["Llama 2 70B"] == 80 * 132_096
    assert totals["BERT base"] == 12 * (2 * 12 * 64**2 + 2 * 768)
    assert totals["Falcon 7B"] == 32 * (64 + 64**2)
    assert totals["DeepSeek-V3"] == 61 * (
        128 * 2 * 128**2 + 64 + 512 * 513 // 2 + 1 + 1536 * 1537 // 2 + 1
    )


@pytest.mark.parametrize("entry", ATLAS, ids=[entry["name"] for entry in ATLAS])
def test_reports_add_up(entry):
    architecture = read_architecture(entry["config"])
    data = report(architecture)
    assert json.loads(json.dumps(data))["total"]["unidentified"] == architecture.total.unidentified
    for part in ("parameters", "unidentified"):
        assert sum(numbers[part] for numbers in data["circuits"].values()) == data["total"][part]
    assert sum(row["layers"] for row in data["kinds"]) == len(architecture.layers)
    for _, layer in architecture.kinds:
        assert (
            add_up((part, 1) for part in circuits(layer).values()).unidentified
            == count_layer(layer).unidentified
        )
    assert f"{data['total']['unidentified']:,}" in count_table(architecture)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `python -m attnid count` with arguments in this process: what it prints, or what it exits with."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["attnid", "count", *map(str, arguments)])
        assert main() == 0
        return capsys.readouterr().out

    return run


def test_the_command_prints_a_table_or_json(tmp_path, command):
    (tmp_path / "config.json").write_text(
        json.dumps(next(entry["config"] for entry in ATLAS if entry["name"] == "Llama 2 70B"))
    )
    text, data = command(tmp_path), json.loads(command(tmp_path / "config.json", "--json"))
    assert text == count_table(read_architecture(tmp_path)) + "\n" and data == report(
        read_architecture(tmp_path)
    )
    assert (
        "10,567,680" in text
        and "query-key maps 1,024" in text
        and data["total"]["unidentified"] == 10_567_680
    )


def test_the_command_names_what_it_cannot_read(tmp_path, command, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "rwkv"}))
    for path, named in ((tmp_path, "model_type='rwkv'"), (tmp_path / "none", "none")):
        with pytest.raises(SystemExit) as exit:
            command(path)
        assert exit.value.code == 2 and named in capsys.readouterr().err


def test_a_plain_layer_is_counted_as_before():
    assert count_layer(Attention(8, 2)) == count(Attention(8, 2))
