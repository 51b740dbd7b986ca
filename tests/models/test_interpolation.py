"""The loss on the line: a barrier before alignment, none after; records read as they were written."""

import json

import pytest
import torch
from pairs_of_models import moved, noisy_gpt

from attnid import load_corpus
from attnid.models.interpolation import (
    POINTS,
    PairRecord,
    barrier,
    between,
    loss_at,
    losses_between,
    measure_pair,
    read_pairs,
)
from attnid.network.gpt import GPT, GPTConfig
from attnid.training.trainer import TrainingConfig, train


@pytest.fixture(scope="module")
def trained():
    corpus = load_corpus("embedded")
    model = GPT(GPTConfig(len(corpus.vocabulary), 16, n_layer=2, n_head=2, n_embd=16, bias=True))
    train(model, corpus, TrainingConfig(150, batch_size=16, warmup=10, learning_rate=5e-3))
    return model, corpus.val


def test_the_barrier_of_one_model_in_two_gauges_is_gone_when_aligned(trained):
    model, text = trained
    other = moved(model.double(), 1).float()
    losses, distances = measure_pair(model.float(), other, text, windows=32)
    barriers = {name: barrier(values) for name, values in losses.items()}
    assert barriers["as trained"] > 0.1 and barriers["heads"] > 0.01
    assert all(barriers[name] < 1e-4 for name in ("units", "stream", "norms", "rotations"))
    assert distances["units"] < 1e-3 < 1 < distances["as trained"]
    ends = torch.tensor([[values[0], values[-1]] for values in losses.values()])
    assert (ends - ends[0]).abs().max() < 1e-4


def test_ends_and_middle(trained):
    model, text = trained
    other = GPT(model.config, seed=5).double()
    losses = losses_between(model.double(), other, text, points=(0.0, 1.0), windows=16)
    assert abs(losses[0] - loss_at(model.float(), text, 16)) < 1e-6
    assert abs(losses[1] - loss_at(other.float(), text, 16)) < 1e-6
    model.double(), other.double()
    middle = between(model, other, 0.25)
    name = "transformer.h.1.mlp.c_fc.weight"
    wanted = 0.75 * model.state_dict()[name] + 0.25 * other.state_dict()[name]
    assert torch.equal(middle.state_dict()[name], wanted)


def test_records_come_back(tmp_path):
    flat = [2.0] * len(POINTS)
    record = PairRecord(
        "children", 3, ["a", "b"], {"as trained": flat}, {"as trained": 1.0}, {"data": "x"}
    )
    record.write(tmp_path)
    found = read_pairs(tmp_path)
    assert found == {"children": [record], "independent": []} and record.barriers == {
        "as trained": 0.0
    }


def test_bad_records_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no records of pairs"):
        read_pairs(tmp_path)
    whole = dict(
        kind="children",
        pair=0,
        models=["a", "b"],
        losses={"as trained": [1.0] * 11},
        distances={},
        provenance={},
        points=list(POINTS),
    )
    spoilt = [
        (dict(kind="cousins"), "is not the record that its name says"),
        (dict(pair=1), "is not the record that its name says"),
        (dict(points=[0, 1]), "must have the points"),
        (dict(losses={"as trained": [1.0] * 10}), "as trained: must be 11 finite losses"),
        (dict(losses={"as trained": [float("nan")] * 11}), "as trained: must be 11 finite losses"),
        (dict(more=1), "does not hold the fields"),
    ]
    for change, why in spoilt:
        (tmp_path / "children-0.json").write_text(json.dumps(whole | change))
        with pytest.raises(ValueError, match=f"children-0.json.*{why}"):
            read_pairs(tmp_path)


def test_bad_input(trained):
    model, text = trained
    with pytest.raises(ValueError, match="^tokens=17: must be more tokens than 2 windows"):
        loss_at(model, text[:17], 2)
    with pytest.raises(ValueError, match="^t=nan: must be a finite number"):
        between(model, model, float("nan"))
    with pytest.raises(ValueError, match="^config="):
        between(model, noisy_gpt(0), 0.5)
