"""The smallest preset, and workers that start quickly."""

import pytest
from kills import FORKSERVER
from small_runs import TINY

from attnid.training import processes
from attnid.training.cases import PRESETS


@pytest.fixture
def tiny(monkeypatch):
    """The smoke preset, smaller still."""
    monkeypatch.setitem(PRESETS, "smoke", TINY)


@pytest.fixture
def quick_start(monkeypatch):
    monkeypatch.setattr(processes, "get_context", lambda method: FORKSERVER)
