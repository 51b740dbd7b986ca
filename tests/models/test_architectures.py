import json
import re
import subprocess
import sys
import time

import pytest
import real_layers as real
import torch
from real_layers import LLAMA

from attnid import Attention, count
from attnid.__main__ import main
from attnid.models.architectures import (
    add_up,
    circuits,
    count_layer,
    count_table,
    load_atlas,
    read_architecture,
    report,
)

ATLAS = load_atlas()


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
