"""One thread a test process, shapes checked as signatures state them, reproducible property tests, the slowest work first."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the kernels that nbval starts inherit it

import shapes

shapes.enforce()  # before anything imports the package

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("attnid", deadline=None, derandomize=True)
settings.load_profile("attnid")


def pytest_collection_modifyitems(items):
    """Build the book first, on one worker, while the others test; look at it in a browser last."""
    items.sort(key=lambda item: {"test_book.py": 0, "test_browser.py": 2}.get(item.path.name, 1))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built book: the first process of a test run that asks builds it, the others wait."""
    import build

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with FileLock(shared / "book.lock"):
        if not (shared / "book-is-built").exists():
            build.build()
            (shared / "book-is-built").touch()
    return build.ROOT / "_build" / "html"
