"""The account of a checkpoint: its numbers against independent ones."""

import json
import math

import pytest
import tiny_models as tiny
import torch

from attnid import Attention, count, head_metrics
from attnid.layer.metrics import with_bias
from attnid.models.architectures import read_architecture
from attnid.models.auditing import METRICS, audit, audit_layer, audit_table


@pytest.fixture(scope="module")
def accounts(tmp_path_factory):
    """Family -> the account of a tiny model of it."""
    found = {}
    for name, config in tiny.FOLDERS.items():
        folder = tmp_path_factory.mktemp("models") / name.replace(", ", "-").replace(" ", "-")
        tiny.model_of(config).save_pretrained(folder)
        found[name] = folder, audit(folder)
    return found


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_an_account_counts_what_the_configuration_says(accounts, name):
    folder, account = accounts[name]
    architecture = read_architecture(folder)
    assert (
        account["total"]["unidentified"]
        == architecture.total.unidentified
        == sum(layer["unidentified"] for layer in account["layers"])
    )
    assert [len(layer["heads"]) for layer in account["layers"]] == [
        a.G for _, a in architecture.layers
    ]
    assert json.loads(json.dumps(account, allow_nan=False)) == account
    lines = audit_table(account).splitlines()
    assert len(lines[3 : lines.index("", 3)]) == sum(a.G for _, a in architecture.layers)
    for layer, (_, a) in zip(account["layers"], architecture.layers):
        assert all((head["beta"] is None) == bool(a.qk_norm) for head in layer["heads"])


def test_plain_heads_have_the_head_metrics_of_weights_with_their_biases():
    layer = Attention(12, 3, bias="qkvo")
    p = layer.random_parameters(1)
    Q, K = (with_bias(p[f"W_{letter}"], p[f"b_{letter}"]) for letter in "QK")
    expected = head_metrics(Q, K, Q, K)
    account = audit_layer(layer, p)
    for name in ("beta", "tau", "mu"):
        assert [head[name] for head in account["heads"]] == pytest.approx(
            expected[name].tolist(), rel=1e-10
        )
    product = torch.linalg.svdvals(p["W_K"].mT @ p["W_Q"])[:, :4]
    assert [head["condition_query_key"] for head in account["heads"]] == pytest.approx(
        (product[:, 0] / product[:, 3]).tolist(), rel=1e-8
    )
    product = torch.linalg.svdvals(p["W_O"] @ p["W_V"])[:, :4]
    assert [head["condition_value_output"] for head in account["heads"]] == pytest.approx(
        (product[:, 0] / product[:, 3]).tolist(), rel=1e-8
    )
    assert account["idle_key_biases"] == {"numbers": 12, "largest": p["b_K"].abs().max().item()}
    assert account["foldable_value_biases"] == {
        "numbers": 12,
        "largest": p["b_V"].abs().max().item(),
    }
    assert account["unidentified"] == count(layer).unidentified


def commuting_part(gram, planes):
    """The orthogonal projection of a Gram matrix (D, D) on what commutes with rotations of the first planes, each by an angle of its own."""
    D, out = len(gram), torch.zeros_like(gram)
    out[2 * planes :, 2 * planes :] = gram[2 * planes :, 2 * planes :]
    for i in range(planes):
        block = gram[2 * i : 2 * i + 2, 2 * i : 2 * i + 2]
        out[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block.trace() / 2 * torch.eye(2) + (
            block[0, 1] - block[1, 0]
        ) / 2 * torch.tensor([[0.0, 1], [-1, 0]])
    assert D == gram.shape[1]
    return out


def test_rotary_groups_count_what_commutes_with_the_rotations():
    layer = Attention(12, 4, 2, 6, rotary=(1.0, 0.3))
    p = layer.random_parameters(2)
    for head, (queries, keys) in zip(
        audit_layer(layer, p)["heads"], zip(p["W_Q"].unflatten(0, (2, 2)), p["W_K"])
    ):
        P = sum(commuting_part(W @ W.mT, 2) for W in queries.double())
        K = commuting_part(keys @ keys.mT, 2)
        norm = torch.linalg.matrix_norm
        assert head["beta"] == pytest.approx(norm(P - K).item()) and head["tau"] == pytest.approx(
            (P - K).trace().item()
        )
        assert head["imbalance"] == pytest.approx((norm(P - K) / (norm(P) + norm(K))).item())
        least = [
            torch.linalg.eigvalsh(P[part, part])[0] + torch.linalg.eigvalsh(K[part, part])[0]
            for part in (slice(0, 2), slice(2, 4), slice(4, 6))
        ]
        assert head["mu"] == pytest.approx(min(least).item())


def test_a_product_of_lower_rank_has_no_condition_number():
    layer = Attention(12, 3)
    p = layer.random_parameters(3)
    p["W_Q"][1, 0] = p["W_Q"][1, 1]
    p["W_V"][2] = 0
    heads = audit_layer(layer, p)["heads"]
    assert [head["condition_query_key"] is None for head in heads] == [False, True, False]
    assert [head["condition_value_output"] is None for head in heads] == [False, False, True]


@pytest.mark.parametrize(
    "options, key, value",
    [
        ({"rotary": (1.0,)}, 2 * 3, 4 * 3),
        ({"score": "sink"}, 0, 0),
        ({"score": "softcap"}, 0, 4 * 3),
        ({}, 4 * 3, 4 * 3),
    ],
)
def test_biases_that_are_seen_are_not_called_idle(options, key, value):
    layer = Attention(12, 3, bias="qkvo", **options)
    account = audit_layer(layer, layer.random_parameters(0))
    assert (
        account["idle_key_biases"]["numbers"] == key
        and account["foldable_value_biases"]["numbers"] == value
    )


def test_numbers_that_are_not_finite_are_named():
    layer = Attention(12, 3)
    p = layer.random_parameters(0)
    p["W_K"][0, 0, 0] = math.inf
    with pytest.raises(ValueError, match="^W_K=inf: every number"):
        audit_layer(layer, p)


def test_every_column_has_a_title():
    head = {"head": 0} | dict.fromkeys(METRICS)
    layer = {
        "layer": 0,
        "heads": [head],
        "idle_key_biases": {"numbers": 0, "largest": 0.0},
        "foldable_value_biases": {"numbers": 0, "largest": 0.0},
    }
    account = {
        "name": "x",
        "model_type": "bert",
        "layers": [layer],
        "total": {"unidentified": 0, "parameters": 1, "terms": {}},
        "notes": [],
    }
    titles, row = audit_table(account).splitlines()[2:4]
    assert len(titles) == len(row) and row.split() == ["0", "0"] + ["-"] * len(METRICS)
