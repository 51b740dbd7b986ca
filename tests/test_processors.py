"""The quick tests of the numerical core once more, by the kernels of an older processor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OLDER = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
}
TRAINING = ("cases", "experiments", "recorder")
NUMERICAL = (
    "tests/layer",
    "tests/network/test_gpt.py",
    *(f"tests/training/test_{name}.py" for name in TRAINING),
)


def older(*command):
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=own | OLDER, capture_output=True, text=True
    )


def test_the_kernels_are_older_ones():
    found = older("-c", "import torch; print(torch.backends.cpu.get_cpu_capability())")
    assert found.stdout.strip() == "DEFAULT", found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("part", NUMERICAL)
def test_what_holds_here_holds_on_an_older_processor(part):
    quick = ("-m", "not slow", "--override-ini", "addopts=", "-p", "no:cacheprovider")
    found = older("-m", "pytest", "-q", part, *quick)
    assert found.returncode == 0, found.stdout[-3000:]
