"""Reading a configuration: planes turn as in transformers, in old files and in new ones."""

import pytest
import torch
from real_layers import LLAMA

from attnid.models.architectures import read_architecture
from attnid.models.configurations import Fields, rotary_angles

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
    "base, scaling",
    [(1e-320, None), (1.0, SCALINGS["yarn"]), (1e4, SCALINGS["llama3"] | {"low_freq_factor": 4.0})],
)
def test_fields_that_give_no_angles_are_refused_by_name(base, scaling):
    width = 2 if base == 1 else 128
    scaling = scaling and Fields(scaling)
    with pytest.raises(ValueError, match=f"rope_theta={base!r}: with rope_type="):
        rotary_angles(Fields({"max_position_embeddings": 4096}), width, base, scaling)
