"""The count of a whole network: formula, generators and measured rank agree; what has no known count is refused."""

from dataclasses import replace

import pytest
import torch
from small_networks import KINDS, NANOGPT, SIZES, changes_at, small, tokens

from attnid import GPTConfig, count, generators, measure
from attnid.layer.flat import flatten
from attnid.network import contexts, random_parameters


def assert_three_counts_agree(config):
    counted, parameters, rows = count(config), random_parameters(config, 3), []
    relative_changes = changes_at(config, parameters, tokens(config))
    for term, directions in generators(config, parameters).items():
        rows.append(flatten(config, directions))
        assert len(rows[-1]) == counted.terms[term], term
        assert relative_changes(directions).max() < 1e-10, term
    values = torch.linalg.svdvals(
        torch.cat([part / part.norm(dim=1, keepdim=True) for part in rows])
    )
    assert len(values) == counted.unidentified and values[-1] > 1e-6 * values[0]
    measured = measure(config)
    assert (measured.parameters, measured.nullity) == (counted.parameters, counted.unidentified)
    assert measured.gap > 1e6


def named(config):
    return " ".join(f"{value}" for value in vars(config).values())


@pytest.mark.parametrize("config", [small(kind, V) for V in (7, 3) for kind in KINDS], ids=named)
def test_formula_generators_and_rank_agree(config):
    assert_three_counts_agree(config)


@pytest.mark.parametrize(
    "config", [small(kind, V, eps=0.0) for V in (7, 3) for kind in KINDS[::5]], ids=named
)
def test_without_eps_the_stream_has_no_scale(config):
    assert_three_counts_agree(config)
    assert (
        count(config).terms["residual scale"] == 1
        and count(replace(config, eps=1e-5)).unidentified == count(config).unidentified - 1
    )


@pytest.mark.parametrize(
    "config",
    [
        GPTConfig(9, 4, 2, 2, 4, mlp_width=4, bias=True),
        GPTConfig(9, 4, 2, 2, 4, mlp_width=4, norm="rmsnorm", tied=False),
        GPTConfig(9, 4, 2, 1, 4, mlp_width=4, norm="rmsnorm", positions="rotary"),
        GPTConfig(3, 9, 1, 3, 3, mlp_width=3, bias=True),
        GPTConfig(9, 8, 1, 1, 3, mlp_width=3, bias=True),
        GPTConfig(4, 9, 1, 1, 6, mlp_width=3, bias=True, positions="none"),
        GPTConfig(4, 9, 1, 1, 6, mlp_width=3, positions="rotary"),
        GPTConfig(5, 7, 1, 1, 4, mlp_width=4, positions="none", tied=False),
        # tokens and positions together span less than the stream, as at nanoGPT's size
        GPTConfig(5, 4, 1, 2, 10, mlp_width=3, bias=True),
        GPTConfig(5, 4, 1, 2, 10, mlp_width=3, norm="rmsnorm", bias=True, tied=False),
    ],
    ids=named,
)
def test_heads_layers_and_widths(config):
    assert_three_counts_agree(config)


@pytest.mark.parametrize("positions", [("rotary", "none"), ("none", "rotary")])
@pytest.mark.parametrize(
    "config", [small(kind, V, n_layer=2) for V in (7, 3) for kind in KINDS[1::6]], ids=named
)
def test_layers_that_turn_beside_layers_that_do_not(config, positions):
    assert_three_counts_agree(replace(config, positions=positions))


def test_a_layer_that_does_not_turn_has_more_to_lose():
    """D^2 a head in place of D, and its key bias; nothing else changes."""
    sizes = dict(vocab_size=50, block_size=20, n_layer=4, n_head=3, n_embd=12, bias=True)
    mixed = ("rotary", "none", "rotary", "rotary")
    all_turn, one_still = (GPTConfig(**sizes, positions=p) for p in ("rotary", mixed))
    more = {
        term: size - count(all_turn).terms.get(term, 0)
        for term, size in count(one_still).terms.items()
    }
    assert {term: size for term, size in more.items() if size} == {
        "query-key maps": 3 * (4**2 - 4),
        "key constants": 12,
    }
    assert GPTConfig(**sizes, positions=("none",) * 4) == GPTConfig(**sizes, positions="none")


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        replace(small(kind, V), n_layer=2, n_embd=E, n_head=H, block_size=6, mlp_width=5)
        for V, E, H in ((9, 4, 1), (5, 8, 4))
        for kind in KINDS[::2]
    ],
    ids=named,
)
def test_a_wider_grid(config):
    assert_three_counts_agree(config)


def test_nanogpt():
    counted, H, D, E, N, T, F = count(NANOGPT), 6, 64, 384, 6, 256, 1536
    unseen = E - 65 + 1
    assert counted.parameters == 10_745_088
    assert counted.terms == {
        "query-key maps": N * H * D * D,
        "value-output maps": N * H * D * D,
        "norm gains": 2 * N * E,
        "centred inputs": N * (3 * E + F),
        "writing along ones": N * (E + F) + T,
        "residual rotations": unseen * (unseen + 1) // 2 + 4 - E,
        "embedding against positions": E,
        "inputs never met": E * (2 * (E - 1 - 320) + E - 1 - 319),
    }


@pytest.mark.parametrize(
    "fields, words",
    [
        (dict(vocab_size=2), "vocab_size=2"),
        (dict(block_size=1), "block_size=1"),
        (dict(n_embd=2), "n_embd=2"),
        (dict(positions="rotary", block_size=2), "block_size=2"),
        (dict(mlp_width=4000), "block_size=5: .*too few"),
        (
            dict(n_embd=16, n_head=2, vocab_size=4, positions="none", block_size=30),
            "vocab_size=4: the first MLP",
        ),
        (dict(n_embd=16, n_head=2, vocab_size=4, block_size=7), "vocab_size=4: .*heads of size 8"),
        (
            dict(n_embd=12, n_head=6, vocab_size=3, block_size=8),
            "vocab_size=3: the first positions",
        ),
        (
            dict(n_embd=6, n_head=1, vocab_size=5, block_size=6, positions="rotary"),
            "vocab_size=5: heads of size 6",
        ),
    ],
)
def test_what_has_no_known_count_is_refused_by_name(fields, words):
    with pytest.raises(ValueError, match=words):
        count(GPTConfig(**dict(vocab_size=7, block_size=5) | SIZES | fields))


def test_contexts_are_counted():
    assert contexts(small(KINDS[0], 3, block_size=3)) == 3 + 9 + 27
    assert (
        contexts(small(KINDS[0], 3, block_size=3, positions="none")) == 3 + 9 + 18
    )  # two earlier tokens in any order
