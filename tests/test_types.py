"""The package's types: a type checker agrees with them, and tests enforce the shapes in signatures."""

import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch

import attnid

ROOT = Path(__file__).resolve().parents[1]


def test_a_type_checker_finds_nothing():
    run = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_the_package_says_that_it_is_typed():
    assert (Path(attnid.__file__).parent / "py.typed").exists()


def test_a_shape_that_a_signature_rules_out_is_an_error_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        attnid.act_query_key(torch.eye(2), torch.ones(2, 3), torch.ones(2, 4))
