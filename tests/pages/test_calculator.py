"""The book's calculator counts as the package does, in a browser, on a thousand random descriptions, and refuses what it refuses."""

import math
import re
from dataclasses import asdict

import browser
import pytest
from descriptions import descriptions
from hypothesis import HealthCheck, given, settings

from attnid import Attention, count

STATIC = browser.ROOT / "book" / "_static"
EXAMPLES = 1000
NOT_COVERED = "no closed form with this norm"


@pytest.fixture(scope="module")
def chromium():
    yield from browser.launched()


@pytest.fixture(scope="module")
def counted(chromium):
    """Count a list of descriptions with the page's own script: for each {"parameters", "terms", ...} or {"error"}."""
    page = chromium.new_page()
    page.add_script_tag(path=STATIC / "count.js")
    attempt = "list => list.map(fields => { try { return attnid.count(fields); } catch (error) { return {error: error.message}; } })"
    yield lambda fields: page.evaluate(attempt, fields)
    page.close()


def drawn(strategy, examples):
    """That many descriptions of a strategy, always the same ones."""
    found = []

    @given(strategy)
    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    def draw(attention):
        found.append(attention)

    draw()
    return found


def needs_a_rank(attention):
    """Whether a term of the count is a rank and has no closed form: normalised heads that are wider than their inputs."""
    a, whole = attention, attention.qk_norm == "layer_gain"
    lone_key = (a.G * a.D if whole else a.D) == 1
    return a.qk_norm is not None and not lone_key and (a.H if whole else 1) * a.D > a.input_rank


def fields(attention):
    return asdict(attention) | {"rotary": list(attention.rotary)}


def terms(result):
    return {term["name"]: term["dimension"] for term in result["terms"]}


@pytest.fixture(scope="module")
def layers():
    """Small random layers, and the same with wide inputs, where a head is as narrow as in practice."""
    wide = drawn(descriptions(least_inputs=4, most_parameters=5000, embed_dim=40), EXAMPLES // 2)
    return drawn(descriptions(), EXAMPLES) + wide


def test_a_thousand_random_layers_are_counted_as_the_package_counts_them(counted, layers):
    countable = [layer for layer in layers if not needs_a_rank(layer)]
    assert len(countable) >= EXAMPLES
    for layer, found in zip(countable, counted([fields(layer) for layer in countable])):
        expected = count(layer)
        assert "error" not in found, (layer, found)
        assert terms(found) == expected.terms, layer
        assert (found["parameters"], found["unidentified"], found["identified"]) == (
            expected.parameters,
            expected.unidentified,
            expected.identified,
        ), layer
        assert found["share"] == expected.share, layer


def test_every_term_but_the_rank_occurs_among_them(counted, layers):
    found = counted([fields(layer) for layer in layers])
    assert {name for result in found if "error" not in result for name in terms(result)} >= {
        "query-key maps",
        "key bias",
        "value-output maps",
        "value bias",
        "centred inputs",
        "query scales",
        "key scales",
        "gain exchange",
        "rotations",
        "signs only",
        "sink against constant scores",
        "channel scales",
        "offset bias shift",
        "offset key shift",
        "offset exchange",
    }


def test_what_needs_a_rank_is_said_not_to_be_covered(counted, layers):
    wide = [layer for layer in layers if needs_a_rank(layer)]
    assert len(wide) > 100
    for layer, found in zip(wide, counted([fields(layer) for layer in wide])):
        assert NOT_COVERED in found.get("error", "") and found["error"].startswith(
            f"qk_norm={layer.qk_norm!r}: "
        ), (layer, found)


def test_circuits_and_workings_add_up(counted, layers):
    for found in counted([fields(layer) for layer in layers if not needs_a_rank(layer)]):
        for part in ("parameters", "unidentified"):
            assert sum(circuit[part] for circuit in found["circuits"]) == found[part]
        assert all(
            0 <= circuit["unidentified"] <= circuit["parameters"] for circuit in found["circuits"]
        )
        for term in found["terms"]:
            if term["name"] != "wide heads":
                assert value(term["working"]) == term["dimension"], term


def value(working):
    """The number that a working such as "2 × (3 × 4² + 1)" comes to."""
    assert re.fullmatch(r"[\d ()×−+²/]+", working), working
    return eval(working.replace("×", "*").replace("−", "-").replace("²", "**2"))


@pytest.mark.parametrize(
    "given",
    [
        dict(embed_dim=4, heads=8, kv_heads=1, head_dim=1, qk_norm="layer_gain"),
        dict(embed_dim=2, heads=8, kv_heads=1, head_dim=1, qk_norm="layer_gain"),
        dict(embed_dim=2, heads=9, kv_heads=1, head_dim=1, qk_norm="layer_gain", bias="q"),
        dict(
            embed_dim=8192,
            heads=64,
            kv_heads=8,
            rotary=[10000.0 ** (-2 * i / 128) for i in range(64)],
        ),
        dict(embed_dim=8, heads=1, rotary=[1.0, 1.0 + 1e-10, 1.0 + 1.5e-9, 1e6]),
        dict(
            embed_dim=12,
            heads=1,
            rotary=[1e-8, 1e-8, math.pi - 1e-8, math.pi - 1e-8, math.pi + 1e-10, math.pi],
        ),
        dict(embed_dim=16384, heads=128),
        dict(embed_dim=1, heads=1, head_dim=5, value_dim=3, bias="qkvo", rotary=[0.0, 1.0]),
    ],
    ids=str,
)
def test_chosen_layers(counted, given):
    [found] = counted([given])
    assert terms(found) == count(Attention(**given)).terms


IMPOSSIBLE = [
    dict(embed_dim=0, heads=1),
    dict(embed_dim=-3, heads=1),
    dict(embed_dim=2.5, heads=1),
    dict(embed_dim="8", heads=1),
    dict(embed_dim=True, heads=1),
    dict(embed_dim=None, heads=1),
    dict(embed_dim=8, heads=0),
    dict(embed_dim=8, heads=None),
    dict(embed_dim=8, heads=3),
    dict(embed_dim=8, heads=4, kv_heads=3),
    dict(embed_dim=8, heads=4, kv_heads=8),
    dict(embed_dim=8, heads=4, kv_heads=0),
    dict(embed_dim=8, heads=2, head_dim=0),
    dict(embed_dim=8, heads=2, value_dim=-1),
    dict(embed_dim=8, heads=2, bias="qx"),
    dict(embed_dim=8, heads=2, bias="qq"),
    dict(embed_dim=8, heads=2, bias=3),
    dict(embed_dim=8, heads=2, rotary=[0.5, 0.25, 0.125]),
    dict(embed_dim=8, heads=2, rotary=[None]),
    dict(embed_dim=8, heads=2, rotary=["x"]),
    dict(embed_dim=8, heads=2, qk_norm="rms"),
    dict(embed_dim=8, heads=2, score="linear"),
    dict(embed_dim=8, heads=2, score=None),
    dict(embed_dim=8, heads=2, inputs="wide"),
    dict(embed_dim=8, heads=2, causal="yes"),
    dict(embed_dim=1, heads=1, inputs="centred"),
    dict(embed_dim=2, heads=1, inputs="centred", qk_norm="head", bias="k"),
    dict(embed_dim=2, heads=1, inputs="centred", score="softcap", bias="k"),
    dict(embed_dim=1, heads=2, head_dim=1, qk_norm="head"),
    dict(embed_dim=4, heads=2, head_dim=1, qk_norm="head", bias="q", inputs="centred"),
    dict(
        embed_dim=4,
        heads=2,
        kv_heads=1,
        head_dim=1,
        qk_norm="layer_gain",
        bias="q",
        inputs="centred",
    ),
    dict(embed_dim=8, heads=0, kv_heads=3, bias="x"),
    dict(embed_dim=8, heads=2, gate="both"),
    dict(embed_dim=2, heads=1, inputs="centred", gate="head"),
    dict(embed_dim=8, heads=2, relative="bias"),
    dict(embed_dim=8, heads=2, span=3),
    dict(embed_dim=8, heads=2, relative="content", span=2, qk_norm="head"),
    dict(embed_dim=4, heads=1, head_dim=5, relative="content", span=2, bias="k"),
]


@pytest.mark.parametrize("given", IMPOSSIBLE, ids=str)
def test_what_is_impossible_is_refused_in_the_package_s_words(counted, given):
    with pytest.raises(ValueError) as refused:
        count(
            Attention(**given | ({"rotary": tuple(given["rotary"])} if "rotary" in given else {}))
        )
    assert counted([given])[0].get("error") == str(refused.value)


def test_sizes_that_numbers_of_the_page_cannot_hold_are_refused_by_name(counted):
    assert counted([dict(embed_dim=200_000, heads=1)])[0]["error"].startswith("embed_dim=200000: ")
    [largest] = counted([dict(embed_dim=100_000, heads=100_000, head_dim=100_000)])
    assert (
        largest["parameters"]
        == count(Attention(100_000, 100_000, head_dim=100_000)).parameters
        <= 2**53
    )
