"""The small checkpoints of the examples."""

import torch

from attnid.models.examples import save_gpt
from attnid.models.nanogpt import load_nanogpt


def test_a_gauge_changes_the_weights_and_no_output(tmp_path):
    one, moved, other = (
        load_nanogpt(save_gpt(tmp_path, f"{i}.pt", **options)).double()
        for i, options in enumerate(({}, {"gauge": True}, {"seed": 1}))
    )
    x = torch.arange(6)[None]
    torch.testing.assert_close(moved(x)[0], one(x)[0])
    assert (other(x)[0] - one(x)[0]).abs().max() > 1e-2
    weight = "transformer.h.0.attn.c_attn.weight"
    assert (moved.state_dict()[weight] - one.state_dict()[weight]).abs().max() > 1e-2
