"""Other parametrisations of attention: the same functions at the start, and what is held stays held while it trains."""

import pytest
import torch

from attnid import Attention, count
from attnid.layer.attention import forward, random_inputs
from attnid.network.gpt import GPT, GPTConfig, head_weights, set_head_weights
from attnid.training.data import load_corpus
from attnid.training.parametrisations import Factored, canonical_gpt, factored_gpt
from attnid.training.trainer import TrainingConfig, train

BUILDS = (canonical_gpt, factored_gpt)


def config(bias=True):
    return GPTConfig(len(load_corpus("embedded").vocabulary), 16, 2, 2, 16, bias=bias)


def tokens():
    return torch.randint(11, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("bias", [True, False])
def test_it_starts_as_the_function_of_the_plain_model(build, bias):
    plain, other = GPT(config(bias), 3), build(config(bias), 3)
    torch.testing.assert_close(other(tokens())[0], plain(tokens())[0], rtol=0, atol=1e-6)


def test_it_trains_otherwise_than_the_plain_model():
    settings = TrainingConfig(40, batch_size=4, warmup=0, learning_rate=1e-2)
    losses = [
        train(build(config(), 3), load_corpus("embedded"), settings)["loss"]
        for build in (GPT, *BUILDS)
    ]
    assert max(run[0] for run in losses) - min(run[0] for run in losses) < 1e-6
    assert len({round(run[-1], 4) for run in losses}) == 3


def test_canonical_layers_stay_canonical_and_all_else_is_trained():
    model = canonical_gpt(config(), 3)
    before = [head_weights(model, layer) for layer in range(2)]
    train(model, load_corpus("embedded"), TrainingConfig(20, batch_size=4, warmup=0))
    for layer, old in enumerate(before):
        new, held = head_weights(model, layer), 0
        for name, weight in new.items():
            held += int((weight == old[name]).sum())
        assert held == count(Attention(16, 2, bias="qkvo")).unidentified == 2 * 2 * (8**2 + 8)
        for name in ("W_K", "W_V"):
            scale = (
                new[name]
                .amax((1, 2))
                .new_tensor([w[w == o].max() for w, o in zip(new[name], old[name])])
            )  # of the identity block
            columns = ((new[name] == old[name]).all(1)).sum(1)
            assert columns.tolist() == [8, 8] and scale.gt(0).all()
        assert not new["b_K"].any() and not new["b_V"].any()


def test_held_numbers_have_no_gradient_and_the_others_have():
    model = canonical_gpt(config(), 3)
    model(tokens(), tokens())[1].backward()
    maps = model.transformer.h[0].attn.c_attn
    gradient = maps.parametrizations.weight.original.grad
    assert torch.equal(gradient != 0, ~maps.parametrizations.weight[0].mask)


def test_factored_maps_have_idle_numbers_of_their_own():
    """Measured: the Jacobian of a layer whose query and key maps are (I + B) W loses 2 D^2 more for each head."""
    layer, factored = Attention(6, 2), Factored(2, 3).double()
    p, x = layer.random_parameters(0), random_inputs(layer, 6, 8, 1)
    p |= {
        "B": torch.randn(
            2, 2, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
    }

    def outputs(p):
        fused = torch.cat([p[name].flatten(0, 1) for name in ("W_Q", "W_K", "W_V")])
        moved = torch.func.functional_call(factored, {"B": p["B"]}, (fused,)).view(3, 2, 3, 6)
        return forward(
            layer, {"W_Q": moved[0], "W_K": moved[1], "W_V": moved[2], "W_O": p["W_O"]}, x
        )

    J = torch.cat(
        [part.flatten(3).flatten(0, 2) for part in torch.func.jacrev(outputs)(p).values()], 1
    )
    s = torch.linalg.svdvals(J)
    nullity = int((s < 1e-10 * s[0]).sum())
    assert (
        nullity == count(layer).unidentified + 2 * 2 * 3**2 and s[-nullity - 1] > 1e4 * s[-nullity]
    )


@pytest.mark.parametrize("build", BUILDS)
def test_computed_maps_cannot_be_set(build):
    model = build(config(), 3)
    with pytest.raises(ValueError, match="layer=0: its maps are computed from other parameters"):
        set_head_weights(model, 0, W_Q=head_weights(model, 0)["W_Q"])
