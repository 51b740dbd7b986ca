"""A whole network: formula, generators and measured rank agree; the model's options are what they say."""

import math
from dataclasses import replace

import pytest
import torch

from attnid import GPT, GPTConfig, count, generators, measure
from attnid.layer.directions import flatten
from attnid.network import Network, NullSpace, check_parameters, contexts, random_parameters
from attnid.network.stream import solved, symmetric, symmetric_outer

SIZES = dict(n_layer=1, n_head=2, n_embd=4, mlp_width=4)
KINDS = [
    dict(tied=tied, bias=bias, norm=norm, positions=positions)
    for tied in (True, False)
    for bias in (True, False)
    for norm in ("layernorm", "rmsnorm")
    for positions in ("learned", "rotary", "none")
]
NANOGPT = GPTConfig(65, 256, 6, 6, 384)


def small(kind, vocab_size=7, **other):
    """More tokens than dimensions, or fewer, in blocks just long enough for the rank to be seen in float64."""
    block_size = 5 if vocab_size > 4 else 16 if kind["positions"] == "none" else 8
    return GPTConfig(**dict(vocab_size=vocab_size, block_size=block_size) | SIZES | kind | other)


def tokens(config, batch=4, length=None, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        config.vocab_size, (batch, length or config.block_size), generator=generator
    )


def relative_changes(config, parameters, directions, x):
    """Norms of the log-probabilities' derivative along each direction, for unit directions, over that along a random one."""
    network, rows = Network(config), flatten(config, directions)
    derivative = lambda direction: torch.func.jvp(
        lambda p: network(p, x), (parameters,), (direction,)
    )[1]
    generator = torch.Generator().manual_seed(1)
    anywhere = {
        n: t.square().mean().sqrt() * torch.randn(t.shape, generator=generator, dtype=t.dtype)
        for n, t in parameters.items()
    }
    usual = (
        derivative(anywhere).norm() / sum(part.square().sum() for part in anywhere.values()).sqrt()
    )
    return (
        torch.func.vmap(derivative, chunk_size=32)(directions).flatten(1).norm(dim=1)
        / rows.norm(dim=1)
        / usual
    )


def assert_three_counts_agree(config):
    counted, parameters, rows = count(config), random_parameters(config, 3), []
    for term, directions in generators(config, parameters).items():
        rows.append(flatten(config, directions))
        assert len(rows[-1]) == counted.terms[term], term
        assert relative_changes(config, parameters, directions, tokens(config)).max() < 1e-10, term
    values = torch.linalg.svdvals(
        torch.cat([part / part.norm(dim=1, keepdim=True) for part in rows])
    )
    assert len(values) == counted.unidentified and values[-1] > 1e-6 * values[0]
    measured = measure(config)
    assert (measured.parameters, measured.nullity) == (counted.parameters, counted.unidentified)
    assert measured.gap > 1e6


def named(config):
    return " ".join(f"{value}" for value in vars(config).values())


# ---- the grid


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


# ---- at nanoGPT's size


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


@pytest.mark.slow
def test_generators_at_nanogpts_size():
    config = replace(NANOGPT, bias=True)
    generator = torch.Generator().manual_seed(0)
    initial = {name: p.detach().double() for name, p in GPT(config).named_parameters()}
    parameters = {
        name: p + 0.02 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in initial.items()
    }
    null = NullSpace(config, parameters)
    for term, (size, _) in null.families.items():
        assert size == count(config).terms[term]
        assert (
            relative_changes(config, parameters, null.random(term, 1), tokens(config, 1, 24)).max()
            < 1e-10
        ), term


# ---- what can go wrong


def test_a_direction_that_is_not_null_is_seen():
    config = small(KINDS[0])
    parameters = random_parameters(config)
    wrong = {
        name: torch.zeros(1, *shape, dtype=torch.float64) for name, shape in config.shapes.items()
    }
    wrong["transformer.wte.weight"][:] = 1.0
    wrong["transformer.wpe.weight"][:] = (
        0.5  # the sign of the second is not that of a symmetry, but all-ones is
    )
    assert relative_changes(config, parameters, wrong, tokens(config)).max() < 1e-10
    wrong["transformer.wpe.weight"][..., 0] = 0.0
    assert relative_changes(config, parameters, wrong, tokens(config)).max() > 1e-3


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


def test_wrong_parameters_are_named():
    config = small(KINDS[0])
    good = random_parameters(config)
    bias = "transformer.ln_f.bias"
    for bad, words in (
        (good | {"x": good[bias]}, "parameters='x'"),
        (good | {bias: torch.ones(3)}, "ln_f.bias="),
        (None, "parameters='NoneType'"),
        (good | {bias: torch.full((4,), math.nan)}, "ln_f.bias=nan"),
    ):
        with pytest.raises(ValueError, match=words):
            check_parameters(config, bad)
    with pytest.raises(ValueError, match="parameters=.*too many"):
        measure(NANOGPT)


def test_contexts_are_counted():
    assert contexts(small(KINDS[0], 3, block_size=3)) == 3 + 9 + 27
    assert (
        contexts(small(KINDS[0], 3, block_size=3, positions="none")) == 3 + 9 + 18
    )  # two earlier tokens in any order


def test_solved_and_symmetric():
    generator = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    conditions, x, y, a = normal(3, 10), normal(5, 4), normal(5, 4), normal(1, 10)
    free, fill = solved(conditions)
    full = fill(torch.eye(free, dtype=torch.float64))
    assert (
        free == 7
        and (full @ conditions.T).abs().max() < 1e-12
        and torch.linalg.matrix_rank(full) == 7
    )
    assert torch.allclose(
        symmetric_outer(x, y) @ a[0], torch.einsum("mi,ij,mj->m", x, symmetric(a, 4)[0], y)
    )


# ---- the model's options


@pytest.mark.parametrize("kind", KINDS[::5], ids=str)
def test_shapes_are_the_models(kind):
    config = small(kind)
    model = GPT(config)
    assert list(config.shapes.items()) == [
        (name, tuple(p.shape)) for name, p in model.named_parameters()
    ]
    assert config.parameters == sum(p.numel() for p in model.parameters())
    assert (model.lm_head.weight is model.transformer.wte.weight) == config.tied


def written_out(config, W, idx):
    """Logits of a model with root-mean-square norms, turning heads and an output map of its own, one head and one pair at a time."""
    norm = lambda x, name: (
        x / (x.square().mean(-1, keepdim=True) + config.eps).sqrt() * W[name + ".weight"]
    )
    D, x = config.head_dim, W["transformer.wte.weight"][idx]
    T = idx.shape[1]
    turn = lambda v, p: torch.cat(
        [
            torch.stack(
                (
                    v[..., i] * math.cos(p * f) - v[..., i + 1] * math.sin(p * f),
                    v[..., i] * math.sin(p * f) + v[..., i + 1] * math.cos(p * f),
                ),
                -1,
            )
            for i, f in ((i, 10_000 ** (-i / D)) for i in range(0, D, 2))
        ],
        -1,
    )
    for n in range(config.n_layer):
        block, heads = f"transformer.h.{n}.", []
        q, k, v = (norm(x, block + "ln_1") @ W[block + "attn.c_attn.weight"].T).chunk(3, -1)
        for h in range(config.n_head):
            part = slice(h * D, (h + 1) * D)
            turned = [torch.stack([turn(a[:, p, part], p) for p in range(T)], 1) for a in (q, k)]
            s = (turned[0] @ turned[1].mT / math.sqrt(D)).masked_fill(
                torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf
            )
            heads.append(s.softmax(-1) @ v[..., part])
        x = x + torch.cat(heads, -1) @ W[block + "attn.c_proj.weight"].T
        hidden = norm(x, block + "ln_2") @ W[block + "mlp.c_fc.weight"].T
        x = (
            x
            + (hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2)
            @ W[block + "mlp.c_proj.weight"].T
        )
    return norm(x, "transformer.ln_f") @ W["lm_head.weight"].T


def test_logits_by_the_formulas_alone():
    config = GPTConfig(
        7, 5, 2, 2, 8, tied=False, norm="rmsnorm", positions="rotary", mlp_width=5, eps=0.1
    )
    parameters = random_parameters(config)
    expected = written_out(config, parameters, tokens(config)).log_softmax(-1)
    torch.testing.assert_close(
        Network(config)(parameters, tokens(config)), expected, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize(
    "field, value",
    [
        ("tied", 1),
        ("norm", "batchnorm"),
        ("norm", None),
        ("positions", ["none"]),
        ("mlp_width", 0),
        ("eps", -1.0),
        ("eps", math.nan),
        ("eps", "1"),
    ],
)
def test_impossible_options_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field}="):
        GPTConfig(7, 5, 1, 2, 4, **{field: value})
    with pytest.raises(ValueError, match="positions='rotary'"):
        GPTConfig(7, 5, 1, 2, 6, positions="rotary")
