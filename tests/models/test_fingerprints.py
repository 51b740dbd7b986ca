"""Numbers of each head that no gauge changes."""

import json

import gauges
import pytest
import tiny_models as tiny
import torch

from attnid import Attention, fingerprint
from attnid.models.fingerprints import Fingerprint, fingerprint_table, head_numbers

LAYERS = [
    Attention(16, 4, bias="qkvo"),
    Attention(16, 4, 2, bias="qkv", rotary=(1.0, 0.3)),
    Attention(16, 4, 2, 6, rotary=(1.0,)),
    Attention(16, 4, score="sink", bias="qkvo"),
    Attention(16, 4, qk_norm="head_gain"),
]


@pytest.mark.parametrize("a", LAYERS)
def test_a_thousand_gauges_change_nothing(a):
    p, generator = a.random_parameters(0), torch.Generator().manual_seed(0)
    first = head_numbers(a, p)
    for _ in range(1000):
        found = head_numbers(a, gauges.moved(a, p, generator))
        for circuit, numbers in first.items():
            off = (found[circuit] - numbers).norm(dim=1) / numbers.norm(dim=1)
            assert off.max() < 1e-13


def test_numbers_are_those_of_the_product():
    a = Attention(8, 2, bias="qkv")
    p = a.random_parameters(0)
    found = head_numbers(a, p)
    M, N = p["W_K"].mT @ p["W_Q"], p["W_O"] @ p["W_V"]
    trace = lambda M: M.diagonal(dim1=1, dim2=2).sum(1)
    torch.testing.assert_close(found["query-key"][:, -1], trace(M))
    torch.testing.assert_close(found["value-output"][:, -1], trace(N))
    torch.testing.assert_close(found["value-output"][:, :4], torch.linalg.svdvals(N)[:, :4])
    seen = p["W_K"].mT @ torch.cat((p["W_Q"], p["b_Q"][..., None]), -1)  # key biases are idle
    torch.testing.assert_close(found["query-key"][:, :4], torch.linalg.svdvals(seen)[:, :4])


def test_planes_that_turn_have_numbers_of_their_own():
    a = Attention(8, 2, rotary=(1.0, 0.3))
    p = a.random_parameters(0)
    plane = lambda W, i: torch.complex(W[:, 2 * i], W[:, 2 * i + 1])  # (H, E)
    found = head_numbers(a, p)["query-key"]
    sizes = [plane(p["W_K"], i).norm(dim=1) * plane(p["W_Q"], i).norm(dim=1) for i in (1, 0)]
    torch.testing.assert_close(found[:, :2], torch.stack(sizes, 1))
    traces = [(plane(p["W_K"], i).conj() * plane(p["W_Q"], i)).sum(1) for i in (1, 0)]
    parts = found[:, 2:].reshape(2, 2, 2)
    torch.testing.assert_close(torch.view_as_complex(parts), torch.stack(traces, 1))


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_gauges_are_at_no_distance_and_other_seeds_are(saved, tmp_path, name):
    moved = gauges.in_another_gauge(saved(name), tmp_path / "moved", 0)
    first, same, other = map(fingerprint, (saved(name), moved, saved(name, 1)))
    assert first.distance(same) < 1e-13 < 1e-2 < first.distance(other) < 1
    assert first.distance(other) == pytest.approx(other.distance(first))
    assert first.distance(first) == 0


def test_a_rotation_of_the_stream_is_not_felt_by_singular_values():
    a = Attention(8, 2)
    p = a.random_parameters(0)
    R = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).double()).Q
    turned = {n: R @ t if n == "W_O" else t @ R.T for n, t in p.items()}
    for circuit, numbers in head_numbers(a, p).items():
        torch.testing.assert_close(head_numbers(a, turned)[circuit], numbers)


def test_the_distance_is_at_most_one():
    one = Fingerprint("a", "llama", ({"query-key": torch.ones(2, 3).double()},))
    two = Fingerprint("b", "llama", ({"query-key": -torch.ones(2, 3).double()},))
    none = Fingerprint("c", "llama", ({"query-key": torch.zeros(2, 3).double()},))
    assert one.distance(two) == one.distance(none) == 1 and none.distance(none) == 0


def test_layers_of_another_size_are_no_distance_apart(saved):
    with pytest.raises(ValueError, match="^other='.*has layers of another kind or size"):
        fingerprint(saved("llama")).distance(fingerprint(saved("gpt2")))


def test_plain_data_and_a_table(saved):
    found = fingerprint(saved("llama"))
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["model_type"] == "llama" and len(data["layers"]) == 2
    assert data["layers"][0]["query-key"] == found.layers[0]["query-key"].tolist()
    lines = fingerprint_table(found).splitlines()
    assert lines[0].endswith("2 attention layers") and len(lines) == 3 + 8 + 2
