"""What the ledger's checks of training records can and cannot let pass."""

import numpy as np

from attnid.claims import trained


def noisier(losses, factor):
    """The same means with `factor` times the spread over seeds: {run: {seed: loss}}."""
    mean = {run: np.mean(list(seeds.values())) for run, seeds in losses.items()}
    return {
        run: {seed: mean[run] + factor * (loss - mean[run]) for seed, loss in seeds.items()}
        for run, seeds in losses.items()
    }


def test_noisier_losses_contradict_what_is_said_of_the_hypothesis(monkeypatch):
    losses, contradicted, said = trained.compared(), trained.contradicted, []
    assert trained.hypothesis() == {"records": []}
    monkeypatch.setattr(trained, "compared", lambda: noisier(losses, 40))
    monkeypatch.setattr(trained, "contradicted", lambda s: said.extend(s) or contradicted(s))
    assert set(trained.hypothesis()["records"]) == set(said) - {"ten seeds each"}


def test_a_difference_of_differences_is_paired_by_seed(monkeypatch):
    losses = {
        "adamw": {0: 2.0, 1: 2.1, 2: 5.0},
        "factored": {0: 1.9, 1: 2.3, 2: 5.0},
        "adamw-rate-0.002": {0: 1.5, 1: 1.6},
        "factored-rate-0.002": {0: 1.6, 1: 1.5},
    }
    monkeypatch.setattr(trained, "compared", lambda: losses)
    np.testing.assert_allclose(trained.interaction("factored"), [0.2, -0.3])
    np.testing.assert_allclose(trained.gain("factored"), [-0.3, -0.8])
