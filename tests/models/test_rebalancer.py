"""Rebalancing models in memory: outputs stay, Gram matrices meet, optimizers are treated as asked."""

import copy

import pytest
import torch
from tiny_models import FOLDERS, away, model_of, outputs

from attnid import GPT, Attention, GPTConfig, Rebalancer, rebalance
from attnid.layer.canonical import balance_layer
from attnid.layer.flat import flatten
from attnid.layer.measuring import measure
from attnid.models.rebalancer import trainer_callback
from attnid.network.gpt import head_weights
from attnid.tensors import normal, relative_change

NAMES = ("llama", "gpt2", "bert", "gpt_neox", "qwen2")
SMALL = GPTConfig(13, 8, n_layer=2, n_head=2, n_embd=8, bias=True)


def test_a_layer_is_balanced_as_rebalance_does_it():
    layer = Attention(8, 2, bias="qkvo")
    p = layer.random_parameters(3)
    found, names = balance_layer(layer, p), ("W_Q", "W_K", "b_Q", "b_K")
    expected = rebalance(*(p[name] for name in names))
    for name, tensor in zip(names, expected):
        torch.testing.assert_close(found.parameters[name], tensor)
    torch.testing.assert_close(found.condition["query-key"], expected.condition)
    assert all(torch.equal(found.parameters[n], p[n]) for n in p if n not in names)


def test_groups_that_turn_are_moved_along_what_the_layer_cannot_see():
    layer = Attention(8, 4, kv_heads=2, head_dim=4, rotary=(1.0,), bias="qk")
    p = layer.random_parameters(3)
    p["W_Q"] *= 1 + 1e-6  # a small way, which is a null direction
    q = balance_layer(layer, p).parameters
    again = balance_layer(layer, q).parameters
    assert relative_change(flatten(layer, batch(again)), flatten(layer, batch(q))) < 1e-12
    near = {name: q[name] + 0 for name in q}
    near["W_K"] = q["W_K"] * (1 - 1e-7)
    near["b_K"] = q["b_K"] * (1 - 1e-7)
    near["W_Q"], near["b_Q"] = q["W_Q"] * (1 + 1e-7), q["b_Q"] * (1 + 1e-7)
    step = flatten(layer, batch(balance_layer(layer, near).parameters)) - flatten(
        layer, batch(near)
    )
    null = flatten(layer, measure(layer, parameters=q).null_space)
    basis = torch.linalg.qr(null.T).Q
    assert relative_change(step @ basis @ basis.T, step) < 1e-5


def batch(parameters):
    return {name: tensor[None] for name, tensor in parameters.items()}


@pytest.mark.parametrize("name", [name for name in FOLDERS if name.split(",")[0] in NAMES])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_of_a_model_stay(name, dtype):
    model = model_of(FOLDERS[name], dtype)
    before = outputs(model)
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    found = Rebalancer(model)()
    assert away(outputs(model), before) < (1e-10 if dtype == torch.float64 else 1e-4)
    assert [each.layer for each in found] == [0, 1]
    assert all(each.moved > 1e-3 and min(each.condition) > 1 for each in found)
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, old[n])}
    assert changed and all("att" in n for n in changed)
    again = Rebalancer(model)()
    assert max(each.moved for each in again) < (1e-10 if dtype == torch.float64 else 1e-4)


def test_our_gpt_is_balanced_head_by_head():
    model = GPT(SMALL, seed=1)
    Rebalancer(model)()
    for layer in range(2):
        w = head_weights(model, layer, dtype=torch.float64)
        P_Q, P_K = w["W_Q"] @ w["W_Q"].mT, w["W_K"] @ w["W_K"].mT
        assert relative_change(P_Q, P_K) < 1e-5


def trained(steps=2):
    model = GPT(SMALL, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    tokens = torch.arange(16).view(2, 8) % 13
    for _ in range(steps):
        model(tokens, tokens)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("moments", ["cleared", "kept"])
def test_moments_are_treated_as_asked(moments):
    model, optimizer = trained()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    Rebalancer(model, optimizer, moments=moments)()
    parameters = dict(model.named_parameters())
    fused = {n for n in parameters if ".attn.c_attn." in n}
    kept = {n for n, p in parameters.items() if p in optimizer.state}
    assert kept == set(parameters) - (fused if moments == "cleared" else set())
    assert len(before) == len(parameters)
    loss = model(torch.zeros(1, 8, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64))[1]
    loss.backward()
    optimizer.step()  # the same tensors are trained on
    assert all(p in optimizer.state for p in parameters.values())


def test_a_wrapped_model_is_found():
    model, inner = torch.nn.Module(), GPT(SMALL, seed=1)
    model.module = inner
    before = inner.transformer.h[0].attn.c_attn.weight.detach().clone()
    Rebalancer(model)()
    assert not torch.equal(inner.transformer.h[0].attn.c_attn.weight, before)


def test_the_trainer_calls_back():
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    model, optimizer = trained()
    steps = []
    callback = trainer_callback(3, report=lambda step, found: steps.append((step, len(found))))
    handler = CallbackHandler([callback], model, None, optimizer, None)
    for step in range(1, 8):
        handler.on_step_end(None, TrainerState(global_step=step), TrainerControl())
    assert steps == [(3, 2), (6, 2)]


NAN = GPT(SMALL, seed=1)
NAN.transformer.h[1].attn.c_attn.weight.data[3, 2] = torch.nan
ROTARY = GPT(GPTConfig(13, 8, n_layer=1, n_head=2, n_embd=8, positions="rotary"), seed=1)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Rebalancer(torch.nn.Linear(3, 3)), "^model='Linear': is neither"),
        (lambda: Rebalancer(ROTARY), "^positions='rotary'"),
        (lambda: Rebalancer(GPT(SMALL), moments="lost"), "^moments='lost'"),
        (
            lambda: Rebalancer(
                GPT(SMALL), torch.optim.SGD([torch.nn.Parameter(normal(2, seed=0))])
            ),
            "^optimizer='SGD': holds none",
        ),
        (lambda: Rebalancer(model_of(FOLDERS["qwen3"])), "normalises all queries and keys"),
        (lambda: Rebalancer(NAN)(), r"^layer 1 \(transformer.h.1.attn.\): W_Q=.*finite"),
        (lambda: trainer_callback(0), "^every=0"),
    ],
)
def test_what_cannot_be_rebalanced_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
