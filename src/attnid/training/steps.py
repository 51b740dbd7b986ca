"""What a step of an optimizer does, changed: hooks on the optimizer of a model."""

import torch

from ..layer.horizontal import generator, subtract
from ..network.gpt import head_weights, set_head_weights


def horizontal_steps(model, optimizer):
    """From now on every step of the optimizer loses its part in the null space of each attention
    layer: start, numbers and gradients stay as they are, and nothing moves along the orbits, to
    first order in the step.

    Queries (biases included) and keys, and values and outputs, lose what `layer.horizontal` takes
    from them. Key and value biases, idle beside query maps and the output bias, stay where they
    are. Whatever the optimizer is, momentum and weight decay included: what counts is the step that
    is made, not the gradient. The arithmetic is float64.
    """
    before = []

    def remember(*_):
        before[:] = _layers(model)

    def correct(*_):
        _correct(model, before)

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(correct)


def _layers(model):
    layers = range(model.config.n_layer)
    return [head_weights(model, layer, dtype=torch.float64) for layer in layers]


def _circuits(weights):
    # the pairs of factors of a layer, each (H, D, ...)
    W_Q, W_V = weights["W_Q"], weights["W_V"]
    if "b_Q" in weights:
        W_Q = torch.cat((W_Q, weights["b_Q"].unsqueeze(-1)), -1)
    return (W_Q, weights["W_K"]), (W_V, weights["W_O"].mT)


def _correct(model, before):
    old = [pair for layer in before for pair in _circuits(layer)]
    new = [pair for layer in _layers(model) for pair in _circuits(layer)]
    changes = [(a - A, b - B) for (A, B), (a, b) in zip(old, new)]
    P = torch.stack([A @ A.mT for A, _ in old])  # (2 layers, H, D, D), all in one batch
    K = torch.stack([B @ B.mT for _, B in old])
    R = torch.stack([dA @ A.mT - B @ dB.mT for (A, B), (dA, dB) in zip(old, changes)])
    kept = [subtract(S, *pair, *d) for S, pair, d in zip(generator(P, K, R), old, changes)]
    moved = [(A + dA, B + dB) for (A, B), (dA, dB) in zip(old, kept)]
    E = model.config.n_embd
    for number, ((Q, W_K), (W_V, W_O)) in enumerate(zip(moved[::2], moved[1::2])):
        biases = {name: before[number][name] for name in ("b_K", "b_V") if name in before[number]}
        if biases:
            biases["b_Q"] = Q[..., E]
        set_head_weights(model, number, W_Q=Q[..., :E], W_K=W_K, W_V=W_V, W_O=W_O.mT, **biases)
