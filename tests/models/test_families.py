"""Each family is described as its module in transformers computes."""

import pytest
import real_layers as real
import torch
from real_layers import LLAMA, layer_of

from attnid.layer.measuring import cut
from attnid.models.architectures import count_layer, read_architecture
from attnid.models.families import FAMILIES


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
