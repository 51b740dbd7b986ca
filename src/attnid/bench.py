"""Benchmarks: our way against the plain way, each in a process of its own, in turn, in one run."""

import json
import resource
import subprocess
import sys
import time

import torch

from . import jacobian
from .attention import Attention, forward, random_inputs

ROUNDS = 3


def _timed(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def measured_rank():
    """`measure(Attention(32, 4))`, and how long its Jacobian and its rank take."""
    attention = Attention(32, 4)
    measurement, seconds = _timed(jacobian.measure, attention)
    parameters = attention.random_parameters(0)
    x = _inputs(attention, parameters, measurement.sequences, measurement.tokens)
    (Z, B), building = _timed(jacobian.jacobian_blocks, attention, parameters, x)
    _, values = _timed(torch.linalg.svdvals, B.flatten(0, 1)[:B.shape[2]])
    return {"rank": measurement.rank, "seconds": seconds, "jacobian": building, "limit": values,
            "sequences": measurement.sequences, "tokens": measurement.tokens}


def plain_rank(sequences, tokens):
    """The plain way over the same batch: `jacrev` of the outputs in all parameters, then `matrix_rank`."""
    attention = Attention(32, 4)
    parameters = attention.random_parameters(0)
    x = _inputs(attention, parameters, sequences, tokens)

    def rank():
        blocks, building = _timed(torch.func.jacrev(lambda p: forward(attention, p, x)), parameters)
        J = torch.cat([blocks[name].flatten(3).flatten(0, 2) for name in attention.shapes], 1)
        return int(torch.linalg.matrix_rank(J)), building

    (rank, building), seconds = _timed(rank)
    return {"rank": rank, "seconds": seconds, "jacobian": building}


def _inputs(attention, parameters, sequences, tokens):
    return random_inputs(attention, sequences, tokens, 1, scale=jacobian.input_scale(attention, parameters))


def child(name, *arguments):
    """Run one side in this process and print what it measured, its peak memory (MiB) included, as JSON."""
    torch.func.vmap(torch.func.jacrev(torch.sin))(torch.zeros(2))  # first use is not what is measured
    result = measured_rank() if name == "measure" else plain_rank(*arguments)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    print(json.dumps(result | {"peak": kilobytes / 1024}))


def _run(*words):
    command = [sys.executable, "-m", "attnid", "bench", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    """Print measured rank against the plain way, side by side: the median of a few rounds in turn."""
    ours, plain = [], []
    for _ in range(ROUNDS):
        ours.append(_run("measure"))
        plain.append(_run("plain", str(ours[-1]["sequences"]), str(ours[-1]["tokens"])))
    median = lambda runs, key: sorted(run[key] for run in runs)[len(runs) // 2]
    if {run["rank"] for run in ours} != {run["rank"] for run in plain}:
        raise SystemExit(f"ranks differ: {ours[0]['rank']} and {plain[0]['rank']}")
    print(f"rank of the Jacobian of Attention(32, 4), {ours[0]['rank']} both ways, median of {ROUNDS} runs in turn")
    for name, runs in (("measure", ours), ("jacrev + matrix_rank", plain)):
        total, building = median(runs, "seconds"), median(runs, "jacobian")
        print(f"  {name:21} {total:6.2f} s, of which Jacobian {building:5.2f} s and rank {total - building:5.2f} s; peak {median(runs, 'peak'):6.0f} MiB")
    faster, smaller = median(plain, "seconds") / median(ours, "seconds"), median(ours, "peak") / median(plain, "peak")
    print(f"  {faster:.1f} times as fast, at {smaller:.2f} of the peak memory")
    print(f"  limit: the singular values alone of the matrix that is left take {median(ours, 'limit'):.2f} s")
