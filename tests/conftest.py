"""One thread a test process, reproducible property tests, and the slowest work first."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")   # the kernels that nbval starts inherit it

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("attnid", deadline=None, derandomize=True)
settings.load_profile("attnid")


def pytest_collection_modifyitems(items):
    """Build the book first, on one worker, while the others test."""
    items.sort(key=lambda item: item.path.name != "test_book.py")
