"""The description of a GPT: what it says of the model, and what is impossible named."""

import math

import numpy as np
import pytest
from small_networks import KINDS, small

from attnid import GPT, GPTConfig


@pytest.mark.parametrize(
    "field, value",
    [
        ("vocab_size", 0),
        ("block_size", -1),
        ("n_layer", 1.0),
        ("n_head", True),
        ("n_embd", "12"),
        ("n_embd", 13),
        ("n_head", 5),
        ("bias", 1),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", math.nan),
        ("dropout", None),
    ],
)
def test_impossible_config_is_named(field, value):
    sizes = dict(vocab_size=11, block_size=6, n_layer=2, n_head=3, n_embd=12) | {field: value}
    with pytest.raises(ValueError, match=f"{field}={value!r}|n_embd=12: .*n_head={value!r}"):
        GPTConfig(**sizes)


def test_sizes_of_numpy_do_not_overflow():
    config = GPTConfig(50257, 1024, 12, np.int32(12), np.int32(49152))
    assert config.parameters == 350414143488 and type(config.n_embd) is type(config.head_dim) is int
    assert type(GPTConfig(11, 6, 1, 1, 4, mlp_width=np.int32(3)).mlp_width) is int


@pytest.mark.parametrize("kind", KINDS[::5], ids=str)
def test_shapes_are_the_models(kind):
    config = small(kind)
    model = GPT(config)
    assert list(config.shapes.items()) == [
        (name, tuple(p.shape)) for name, p in model.named_parameters()
    ]
    assert config.parameters == sum(p.numel() for p in model.parameters())
    assert (model.lm_head.weight is model.transformer.wte.weight) == config.tied


@pytest.mark.parametrize(
    "field, value",
    [
        ("tied", 1),
        ("norm", "batchnorm"),
        ("norm", None),
        ("positions", ["none"]),
        ("positions", ("none", "rotary", "none")),
        ("positions", ("none", "learned")),
        ("positions", ("none", ["rotary"])),
        ("positions", ()),
        ("mlp_width", 0),
        ("eps", -1.0),
        ("eps", math.nan),
        ("eps", "1"),
    ],
)
def test_impossible_options_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field}="):
        GPTConfig(7, 5, 1, 2, 4, **{field: value})
    with pytest.raises(ValueError, match="positions='rotary'"):
        GPTConfig(7, 5, 1, 2, 6, positions="rotary")
