"""What of a trained model's attention its outputs cannot tell: an account of a checkpoint, head by
head.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import require_finite
from ..layer.canonical import factor, idle_key_coordinates, value_bias_folds, value_blocks
from ..layer.rebalancing import SINGULAR, rows_of
from ..layer.rotation import isotypes
from . import architectures
from .folders import open_model
from .layouts import read_layer

METRICS = {
    "beta": "beta",
    "imbalance": "relative",
    "tau": "tau",
    "mu": "mu",
    "condition_query_key": "cond QK",
    "condition_value_output": "cond VO",
}


def audit(path):
    """The account of the model at a path, as plain data, which `audit_table` prints. Errors as for
    `folders.open_model`.

    Each layer has one entry for each head of keys, with the queries that share it. With P_Q and P_K
    the Gram matrices W W^T of the queries' and the keys' maps, biases as one more column: beta =
    ||P_Q - P_K||_F, imbalance = beta / (||P_Q||_F + ||P_K||_F), tau = trace(P_Q - P_K), mu =
    lambda_min(P_Q) + lambda_min(P_K), which are None where queries and keys are normalised; and the
    condition numbers of W_K^T W_Q and W_O W_V, None where the rank is below the head's width. Where
    heads turn, only what commutes with the rotations counts: the blocks of P_Q and P_K over
    coordinates that turn alike, of which mu takes the least sum. `idle_key_biases` and
    `foldable_value_biases` have how many there are and the largest of them, and `unidentified` and
    `terms` are as in `count`. Source: section 5.1 of the paper, Lemma 4.6 and Fact 4.7.
    """
    model = open_model(path)
    whole = architectures.report(model.architecture)
    layers = [
        {"layer": number, "kind": kind} | _audit_numbered(model, number, attention)
        for number, (kind, attention) in enumerate(model.architecture.layers)
    ]
    notes = whole["notes"] + [f"{name}: an adapter is not looked at" for name in model.adapters]
    return {
        "name": whole["name"],
        "model_type": whole["model_type"],
        "notes": notes,
        "total": whole["total"],
        "layers": layers,
    }


def _audit_numbered(model, number, attention):
    tensors = model.layer(number)
    try:
        return audit_layer(attention, read_layer(model.layout, attention, tensors))
    except ValueError as error:
        raise ValueError(f"layer {number}: {error}") from None


def audit_layer(attention, parameters):
    """The account of one layer, from its parameters by the names of `Attention.shapes`; gains of
    queries and keys may be left out.

    ValueError naming a parameter that is not finite.
    """
    p = {name: tensor.detach().double() for name, tensor in parameters.items()}
    for name, tensor in p.items():
        require_finite(name, tensor)
    values, outputs = factor(p, ("W_V",), attention.G), factor(p, ("W_O",), attention.G)
    columns = {"condition_value_output": _conditions(value_blocks(attention), values, outputs)}
    if attention.qk_norm is None:
        blocks = isotypes(attention)
        keys, queries = (
            factor(p, names, attention.G) for names in (("W_K", "b_K"), ("W_Q", "b_Q"))
        )
        weights = attention.E, attention.H // attention.G * attention.E  # columns; then biases
        columns["condition_query_key"] = _conditions(
            blocks, keys[..., : weights[0]], queries[..., : weights[1]]
        )
        columns |= _imbalance(blocks, keys, queries)
    heads = [
        {"head": head}
        | {name: _finite(columns[name][head]) if name in columns else None for name in METRICS}
        for head in range(attention.G)
    ]
    counted = architectures.count_layer(attention)
    return {
        "heads": heads,
        "idle_key_biases": _biases(p, "b_K", idle_key_coordinates(attention)),
        "foldable_value_biases": _biases(
            p, "b_V", range(attention.C) if value_bias_folds(attention) else []
        ),
        "parameters": counted.parameters,
        "unidentified": counted.unidentified,
        "terms": dict(counted.terms),
    }


def audit_table(account):
    """The account as a table of text."""
    lines = [
        f"{account['name']} ({account['model_type']}), {len(account['layers'])} attention layers",
        "",
        f"{'layer':>5} {'head':>4}" + "".join(f"{title:>11}" for title in METRICS.values()),
    ]
    for layer in account["layers"]:
        lines += [
            f"{layer['layer']:5} {head['head']:4}" + "".join(_cell(head[name]) for name in METRICS)
            for head in layer["heads"]
        ]
    lines += [""] + [
        _bias_line(account, "idle_key_biases", "key biases change no output"),
        _bias_line(account, "foldable_value_biases", "value biases can move into output biases"),
    ]
    total = account["total"]
    lines += [
        f"{total['unidentified']:,} of {total['parameters']:,} attention parameters can go "
        f"without changing an output:"
    ]
    lines += [f"{number:15,}  {term}" for term, number in total["terms"].items()]
    return "\n".join(lines + [""] + [f"note: {note}" for note in account["notes"]])


def _cell(value):
    return f"{'-' if value is None else f'{value:.4g}':>11}"


def _bias_line(account, key, words):
    number = sum(layer[key]["numbers"] for layer in account["layers"])
    largest = max(layer[key]["largest"] for layer in account["layers"])
    return f"{number:,} {words}" + (f"; the largest is {largest:.3g}" if number else "")


def _conditions(blocks, A: Float[Tensor, "G d m"], B: Float[Tensor, "G d n"]) -> Float[Tensor, "G"]:
    """Condition numbers of the products A^H B over all blocks, head by head: infinite where the
    rank is below the width.
    """
    products = [(rows_of(block, A), rows_of(block, B)) for block in blocks]
    s = torch.cat([torch.linalg.svdvals(_triangle(a) @ _triangle(b).mH) for a, b in products], -1)
    width = sum(block.size for block in blocks)
    lost = (s.amin(-1) <= SINGULAR * s.amax(-1)) | (s.shape[-1] < width)
    return (s.amax(-1) / s.amin(-1)).masked_fill(lost, torch.inf)


def _triangle(W):
    return torch.linalg.qr(W.mH, mode="r").R  # W = R^H O^H


def _imbalance(blocks, keys: Float[Tensor, "G d m"], queries: Float[Tensor, "G d n"]):
    """How far from balance, head by head: name -> (G,), for beta, imbalance, tau and mu as `audit`
    has them.
    """
    # a complex row holds two real ones, so that the real matrix behind a complex Gram matrix is
    # half of it, twice
    squares = dict.fromkeys(("difference", "P_Q", "P_K", "tau"), keys.new_zeros(len(keys)))
    smallest = []
    for block in blocks:
        share = 0.5 if block.complex else 1.0
        q, k = rows_of(block, queries), rows_of(block, keys)
        P_Q, P_K = q @ q.mH, k @ k.mH
        for name, matrix in (("difference", P_Q - P_K), ("P_Q", P_Q), ("P_K", P_K)):
            squares[name] = squares[name] + share * torch.linalg.matrix_norm(matrix).square()
        squares["tau"] = squares["tau"] + (P_Q - P_K).diagonal(dim1=-2, dim2=-1).real.sum(-1)
        smallest.append(
            share * (torch.linalg.eigvalsh(P_Q)[..., 0] + torch.linalg.eigvalsh(P_K)[..., 0])
        )
    beta, p, k = (squares[name].sqrt() for name in ("difference", "P_Q", "P_K"))
    return {
        "beta": beta,
        "imbalance": beta / (p + k),
        "tau": squares["tau"],
        "mu": torch.stack(smallest).amin(0),
    }


def _finite(value):
    return value.item() if torch.isfinite(value) else None


def _biases(p, name, coordinates):
    idle = p[name][:, list(coordinates)] if len(coordinates) else torch.zeros(0)
    return {"numbers": idle.numel(), "largest": idle.abs().max().item() if idle.numel() else 0.0}
