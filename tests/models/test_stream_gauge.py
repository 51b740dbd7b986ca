"""Streams permuted and turned: the outputs stay, and what was done is found again."""

import pytest
import torch
from numpy.testing import assert_allclose
from pairs_of_models import noisy_gpt, outputs

from attnid import GPTConfig
from attnid.models.stream_gauge import (
    fold_norms,
    nearest_permutation,
    nearest_rotation,
    permute_stream,
    rotate_stream,
    stream_features,
)


@pytest.mark.parametrize(
    "options",
    [
        dict(bias=True),
        dict(bias=False),
        dict(bias=True, tied=False),
        dict(bias=True, positions="rotary"),
    ],
)
def test_outputs_stay_and_the_move_is_found(options):
    model = noisy_gpt(0, **options)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    moved = permute_stream(model, order)
    assert (outputs(moved) - outputs(model)).abs().max() < 1e-12
    back = permute_stream(moved, nearest_permutation(model, moved))
    assert_allclose(stream_features(back), stream_features(model))
    folded = fold_norms(model)
    assert (outputs(folded) - outputs(model)).abs().max() < 1e-12 and not folded.config.tied
    A = torch.randn(8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    A = A - A.mean(0)
    A = (A.T - A.T.mean(0)).T
    turned = rotate_stream(folded, torch.linalg.matrix_exp(A - A.T))
    assert (outputs(turned) - outputs(model)).abs().max() < 1e-11
    back = rotate_stream(turned, nearest_rotation(folded, turned, True))
    assert (stream_features(back) - stream_features(folded)).abs().max() < 1e-11


def test_a_rotation_that_moves_all_ones_changes_the_outputs():
    folded = fold_norms(noisy_gpt(0))
    Q = torch.linalg.qr(
        torch.randn(8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ).Q
    assert (outputs(rotate_stream(folded, Q)) - outputs(folded)).abs().max() > 0.01


def test_bad_input():
    with pytest.raises(ValueError, match="^norm='rmsnorm': must be 'layernorm'"):
        fold_norms(noisy_gpt(0, norm="rmsnorm"))
    with pytest.raises(ValueError, match="ln_1.weight=.*: gains must be 1"):
        rotate_stream(noisy_gpt(0), torch.eye(8).double())
    model = noisy_gpt(0)
    with torch.no_grad():
        model.transformer.ln_f.weight[2] = 0
    with pytest.raises(ValueError, match="^ln_f.weight=0.0: must not be 0"):
        fold_norms(model)
    assert GPTConfig(7, 5, 2, 2, 8).tied
