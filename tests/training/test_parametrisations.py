"""Other parametrisations of attention: the same functions at the start, and what is held stays held while it trains."""

import pytest
import torch

from attnid import Attention, count
from attnid.layer.attention import forward, random_inputs
from attnid.network.gpt import GPT, GPTConfig, head_weights, set_head_weights
from attnid.training.data import load_corpus
from attnid.training.parametrisations import (
    Factored,
    canonical_gpt,
    cut_gpt,
    factored_gpt,
    shrunk_gpt,
    trained,
)
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


DOSES = {1: (1, 0), 2: (1, 1), 4: (2, 2)}  # matrices before the queries, and before the keys


@pytest.mark.parametrize("dose", DOSES)
def test_a_dose_is_so_many_matrices_a_head(dose):
    plain, model = GPT(config(), 3), factored_gpt(config(), 3, dose=dose)
    assert trained(model) - trained(plain) == 2 * 2 * dose * 8**2  # layers, heads
    torch.testing.assert_close(model(tokens())[0], plain(tokens())[0], rtol=0, atol=1e-6)
    maps = model.transformer.h[0].attn.c_attn
    before = maps.weight.detach().clone().view(3, -1)
    for moved, part in enumerate((0, 1)):  # of the matrices in turn: queries, keys
        with torch.no_grad():
            maps.parametrizations.weight[0].B[part::2] += 0.1
        changed = (maps.weight.view(3, -1) != before).any(1)
        assert changed.tolist() == [True, moved == 1 and dose > 1, False]
    (Q, K), B = before[:2].view(2, 2, 8, 16), 0.1 + torch.eye(8)
    for W, found, times in zip((Q, K), maps.weight.view(3, 2, 8, 16), DOSES[dose]):
        torch.testing.assert_close(found, torch.linalg.matrix_power(B, times) @ W)


def test_a_dose_below_one_is_refused():
    with pytest.raises(ValueError, match="^dose=0"):
        factored_gpt(config(), dose=0)


@pytest.mark.parametrize("bias", [True, False])
def test_unheld_starts_canonical_and_all_of_it_is_trained(bias):
    unheld, held = canonical_gpt(config(bias), 3, hold=False), canonical_gpt(config(bias), 3)
    for layer in range(2):
        start, same = head_weights(unheld, layer), head_weights(held, layer)
        assert all(torch.equal(start[name], same[name]) for name in start)
    assert trained(unheld) == config(bias).parameters > trained(held)
    train(unheld, load_corpus("embedded"), TrainingConfig(5, batch_size=4, warmup=0))
    start, after = head_weights(held, 0), head_weights(unheld, 0)
    for name in ("W_K", "W_V"):  # the identity blocks too
        block = head_weights(canonical_gpt(config(bias), 3), 0)[name] == start[name]
        assert (after[name] != start[name])[block].float().mean() > 0.99


def unit_removed(model, layer, unit):
    """The same model with one unit of an MLP set to zero by hand."""
    with torch.no_grad():
        mlp = model.transformer.h[layer].mlp
        mlp.c_fc.weight[unit], mlp.c_fc.bias[unit], mlp.c_proj.weight[:, unit] = 0, 0, 0


def test_cut_is_the_plain_model_without_D_units_and_stays_so():
    plain, cut = GPT(config(), 3), cut_gpt(config(), 3)
    assert trained(plain) - trained(cut) == 2 * 8 * (2 * 16 + 1)
    for layer in range(2):
        for unit in range(56, 64):
            unit_removed(plain, layer, unit)
    torch.testing.assert_close(cut(tokens())[0], plain(tokens())[0], rtol=0, atol=1e-6)
    before = {name: p.detach().clone() for name, p in cut.named_parameters()}
    train(cut, load_corpus("embedded"), TrainingConfig(10, batch_size=4, warmup=0))
    mlp = cut.transformer.h[1].mlp
    assert not mlp.c_fc.weight[56:].any() and not mlp.c_proj.weight[:, 56:].any()
    assert not mlp.c_fc.bias[56:].any() and mlp.c_fc.weight[:56].all()
    assert all((p != before[name]).any() for name, p in cut.named_parameters())


def test_cut_takes_as_many_identified_numbers_as_canonical_takes_idle_ones_at_one_head():
    one = GPTConfig(43, 64, 2, 1, 32, mlp_width=64, bias=True)
    plain = trained(GPT(one))
    idle, cut = (plain - trained(build(one)) for build in (canonical_gpt, cut_gpt))
    assert idle == 2 * count(Attention(32, 1, bias="qkvo")).unidentified == 4224
    assert cut == 4160 and 0.98 < cut / idle < 1


def test_narrower_heads_are_those_of_a_narrower_layer():
    """The outputs of heads of width 3, at the scale of width 8, from the weights that are left."""
    model = shrunk_gpt(config(), 3, head_dim=3)
    train(model, load_corpus("embedded"), TrainingConfig(10, batch_size=4, warmup=0))
    narrow, w = Attention(16, 2, head_dim=3, bias="qkvo"), head_weights(model, 1)
    assert all(not w[name][:, 3:].any() for name in ("W_Q", "W_K", "W_V", "b_Q", "b_K", "b_V"))
    assert not w["W_O"][..., 3:].any() and w["W_Q"][:, :3].all()
    x = random_inputs(narrow, 2, 5, 1)
    whole, kept = Attention(16, 2, bias="qkvo"), {}
    for name, weight in w.items():
        kept[name] = weight.double() if name == "b_O" else weight.double()[:, :3]
    kept["W_O"] = w["W_O"].double()[..., :3]
    scale = (3 / 8) ** 0.5
    kept["W_Q"], kept["b_Q"] = scale * kept["W_Q"], scale * kept["b_Q"]
    found = forward(whole, {name: weight.double() for name, weight in w.items()}, x)
    torch.testing.assert_close(found, forward(narrow, kept, x))
    assert count(whole).identified > count(narrow).identified


@pytest.mark.parametrize(
    "build", [*BUILDS, cut_gpt, lambda config, seed=0: shrunk_gpt(config, seed, head_dim=3)]
)
def test_a_saved_state_is_taken_up(build):
    model, other = build(config(), 3), build(config(), 4)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tokens())[0], model(tokens())[0])


def test_impossible_sizes_are_named():
    for field, value in (("head_dim", 9), ("head_dim", 0), ("mlp_width", 65), ("mlp_width", 1.5)):
        with pytest.raises(ValueError, match=f"^{field}="):
            shrunk_gpt(config(), **{field: value})
