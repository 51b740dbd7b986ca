"""Models aligned step by step: the function stays, and a model moved along symmetries comes back."""

import pytest
import torch
from pairs_of_models import moved, noisy_gpt, outputs

from attnid import GPT, GPTConfig, align
from attnid.models.nanogpt import load_nanogpt
from attnid.models.versions import distance, nearest_gauge_of, versions

STEPS = ["as trained", "circuits", "heads", "units", "stream", "norms", "rotations"]


@pytest.mark.parametrize(
    "options", [dict(bias=True), dict(bias=False), dict(tied=False), dict(positions="rotary")]
)
def test_functions_stay_and_the_distance_falls(options):
    a, b = noisy_gpt(0, **options), noisy_gpt(1, **options)
    found = versions(a, b)
    assert [*found] == STEPS + ["without circuits", "without heads", "without units"]
    for one, other in found.values():
        assert (outputs(one) - outputs(a)).abs().max() < 1e-11
        assert (outputs(other) - outputs(b)).abs().max() < 1e-11
    apart = [distance(*pair) for pair in found.values()]
    assert apart[0] > apart[1] > apart[3] >= apart[4] and apart[2] > apart[3]
    assert apart[5] > apart[6]


def test_a_model_moved_comes_back():
    model = noisy_gpt(0)
    apart = {name: distance(*pair) for name, pair in versions(model, moved(model, 1)).items()}
    assert apart["as trained"] > 5 and apart["heads"] > 1  # units are elsewhere
    assert all(apart[name] < 1e-8 for name in ("units", "stream", "norms", "rotations"))
    apart = {
        name: distance(*pair)
        for name, pair in versions(model, moved(model, 1, stream=True)).items()
    }
    assert apart["units"] > 5 and apart["norms"] > 5
    assert all(apart[name] < 1e-8 for name in ("stream", "rotations"))


def test_as_align_does_it(tmp_path):
    sizes = dict(vocab_size=7, block_size=5, n_layer=2, n_head=2, n_embd=8, bias=True)
    a, b = noisy_gpt(0), noisy_gpt(1)
    for name, model in (("a.pt", a), ("b.pt", b)):
        torch.save({"model": model.state_dict(), "model_args": sizes}, tmp_path / name)
    align(tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "c.pt")
    ours, theirs = nearest_gauge_of(a, b), load_nanogpt(tmp_path / "c.pt").double()
    assert abs(distance(a, ours) / distance(a, theirs) - 1) < 1e-3


def test_bad_input():
    with pytest.raises(ValueError, match="^config=.*the first has"):
        versions(noisy_gpt(0), noisy_gpt(1, bias=False))
    rms = GPT(GPTConfig(7, 5, 1, 2, 8, norm="rmsnorm"))
    with pytest.raises(ValueError, match="^norm='rmsnorm': must be 'layernorm'"):
        versions(rms, rms)
