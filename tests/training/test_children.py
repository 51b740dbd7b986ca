"""Parents and children: who starts where, and runs that go on."""

import pytest
import torch

from attnid.training import children
from attnid.training.children import Person, trained

weights = lambda path: torch.load(path, weights_only=True)["model"]


def test_children_start_from_their_parent(tmp_path, monkeypatch):
    started = []
    train = children.train

    def watched(model, corpus, settings, **options):
        started.append((settings.seed, {n: t.clone() for n, t in model.state_dict().items()}))
        return train(model, corpus, settings, **options)

    monkeypatch.setattr(children, "train", watched)
    paths = [trained(Person(0, child), tmp_path, preset="smoke", steps=3) for child in (0, 1)]
    parent = weights(tmp_path / "parent-0.pt")
    assert [seed for seed, _ in started] == [0, 100, 200]
    for _, start in started[1:]:
        assert all(torch.equal(start[name], parent[name]) for name in parent)
    one, other = map(weights, paths)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    assert [trained(Person(0, n), tmp_path, preset="smoke", steps=3) for n in (0, 1)] == paths
    assert len(started) == 3 and sorted(p.name for p in tmp_path.iterdir()) == [
        "parent-0-child-0.pt",
        "parent-0-child-1.pt",
        "parent-0.pt",
    ]


def test_the_same_person_is_the_same_model(tmp_path):
    one, other = (weights(trained(Person(4), tmp_path / n, preset="smoke", steps=3)) for n in "ab")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_bad_names(tmp_path):
    for words, why in (
        ((-1,), "^parent=-1"),
        ((100,), "^parent=100: must be below"),
        ((0, -1), "^child=-1"),
    ):
        with pytest.raises(ValueError, match=why):
            Person(*words)
    with pytest.raises(ValueError, match="^preset='large': must be one of"):
        trained(Person(0), tmp_path, preset="large")
