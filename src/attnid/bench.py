"""Benchmarks: our way against the plain way, each in a process of its own, in turn, in one run.

Four things are measured: the rank of a layer's Jacobian by `measure` and by `jacrev` with
`matrix_rank` (seconds of the clock and peak memory), the metrics of heads in one batch and in a
loop (seconds of the processor), what measuring adds to a step of training, and how long audit,
reduce and compare take for a model that people use.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from .layer.attention import Attention, forward, random_inputs
from .layer.measuring import jacobian_blocks, measure
from .layer.metrics import head_metrics
from .layer.scaling import input_scale, units
from .network.gpt import GPT, GPTConfig
from .training import experiments
from .training.data import load_corpus
from .training.trainer import Trainer

ROUNDS = 3


def _timed(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def measured_rank():
    """`measure(Attention(32, 4))`, and how long its Jacobian and its rank take."""
    attention = Attention(32, 4)
    measurement, seconds = _timed(measure, attention)
    parameters = attention.random_parameters(0)
    x = _inputs(attention, parameters, measurement.sequences, measurement.tokens)
    (Z, B), building = _timed(
        jacobian_blocks, attention, parameters, x, units(attention, parameters)
    )
    _, values = _timed(torch.linalg.svdvals, B.flatten(0, 1)[: B.shape[2]])
    return {
        "rank": measurement.rank,
        "seconds": seconds,
        "jacobian": building,
        "limit": values,
        "sequences": measurement.sequences,
        "tokens": measurement.tokens,
    }


def plain_rank(sequences, tokens):
    """The plain way over the same batch: `jacrev` of the outputs in all parameters, then
    `matrix_rank`.
    """
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
    return random_inputs(attention, sequences, tokens, 1, scale=input_scale(attention, parameters))


# ---- what training measures


def plain_metrics(W_Q, W_K, W_Q_next, W_K_next):
    """The head metrics (5, layers, heads) by a plain loop over layers and heads, for heads of full
    rank.
    """
    return torch.stack(
        [
            torch.stack([_one_head(*head) for head in zip(*layer)], -1)
            for layer in zip(W_Q, W_K, W_Q_next, W_K_next)
        ],
        1,
    )


def _one_head(W_Q, W_K, W_Q_next, W_K_next):
    dQ, dK, P_Q, P_K = W_Q_next - W_Q, W_K_next - W_K, W_Q @ W_Q.T, W_K @ W_K.T
    p, U_Q = torch.linalg.eigh(P_Q)
    k, U_K = torch.linalg.eigh(P_K)
    T = U_K @ ((U_K.T @ (dQ @ W_Q.T - W_K @ dK.T) @ U_Q) / (k[:, None] + p)) @ U_Q.T
    rho = ((T @ W_Q).square().sum() + (T.T @ W_K).square().sum()) / (
        dQ.square().sum() + dK.square().sum()
    )
    before, after = P_Q - P_K, W_Q_next @ W_Q_next.T - W_K_next @ W_K_next.T
    return torch.stack((rho, before.norm(), before.trace(), p[0] + k[0], (after - before).norm()))


def metrics_times(rounds=40):
    """Seconds of head_metrics and of the plain loop, for one step of the paper's 36 heads; and of
    what neither can do without: the eigendecompositions, and the six products of D x E by E x D.
    The least of many rounds in turn, one thread's own time.
    """
    generator = torch.Generator().manual_seed(0)
    normal = lambda scale: (
        scale * torch.randn(6, 6, 64, 384, generator=generator, dtype=torch.float64)
    )
    W_Q, W_K = normal(0.02), normal(0.02)
    weights = (W_Q, W_K, W_Q + normal(1e-4), W_K + normal(1e-4))
    grams = torch.stack((W_Q @ W_Q.mT, W_K @ W_K.mT))
    ways = {
        "batched": lambda: head_metrics(*weights),
        "loop": lambda: plain_metrics(*weights),
        "eigh": lambda: torch.linalg.eigh(grams),
        "products": lambda: [W_Q @ W_K.mT for _ in range(6)],
    }
    apart = float((torch.stack(list(ways["batched"]().values())) / ways["loop"]() - 1).abs().max())
    return {"apart": apart} | {name: min(times) for name, times in _in_turn(ways, rounds).items()}


def recorder_times(rounds=60):
    """Seconds of a training step at the laptop preset, on the embedded corpus, and of measuring it:
    medians, one thread's own time.
    """
    preset, case, corpus = (
        experiments.PRESETS["laptop"],
        experiments.CASES["adamw"],
        load_corpus("embedded"),
    )
    trainer = Trainer(
        GPT(GPTConfig(len(corpus.vocabulary), **preset.model, bias=True)),
        corpus,
        experiments.Job("laptop", "adamw").training(),
    )
    recorder = experiments.Recorder(case, preset, corpus, trainer.settings, {})
    ways = {
        "before": lambda: recorder.before_step(0, trainer.model),
        "step": trainer.advance,
        "after": lambda: recorder.on_step(0, 0.0, trainer.model, trainer.optimizer),
    }
    median = {name: sorted(times)[rounds // 2] for name, times in _in_turn(ways, rounds).items()}
    return {
        "step": median["step"],
        "measurement": median["before"] + median["after"],
        "every": preset.measure_every,
    }


def _in_turn(ways, rounds):
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()  # what other processes take does not count
            way()
            times[name].append(time.process_time() - start)
    return times


# ---- a model that people use


def stand_in(folder):
    """A model of the sizes of SmolLM2-135M with random weights in float32, written to a folder."""
    from safetensors.torch import save_file

    E, G, F = 576, 3 * 64, 1536
    config = {"model_type": "llama", "hidden_size": E, "intermediate_size": F}
    config |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    config |= {"vocab_size": 49152, "rope_theta": 1e5, "tie_word_embeddings": True}
    shapes = {"self_attn.q_proj": (E, E), "self_attn.k_proj": (G, E), "self_attn.v_proj": (G, E)}
    shapes |= {"self_attn.o_proj": (E, E), "mlp.gate_proj": (F, E), "mlp.up_proj": (F, E)}
    shapes |= {"mlp.down_proj": (E, F), "input_layernorm": (E,), "post_attention_layernorm": (E,)}
    generator = torch.Generator().manual_seed(0)
    draw = lambda shape: torch.randn(shape, generator=generator) / 24
    tensors = {"model.embed_tokens.weight": draw((49152, E)), "model.norm.weight": draw((E,))}
    for layer in range(30):
        stem = f"model.layers.{layer}"
        tensors |= {f"{stem}.{name}.weight": draw(shape) for name, shape in shapes.items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def checkpoint_times():
    """Seconds of audit, reduce and compare for that model: the clock's, all threads."""
    from .models.auditing import audit
    from .models.comparison import compare
    from .models.reduction import reduce_checkpoint

    with tempfile.TemporaryDirectory() as place:
        model, reduced = Path(place) / "model", Path(place) / "reduced"
        model.mkdir()
        stand_in(model)
        account, auditing = _timed(audit, model)
        report, reducing = _timed(reduce_checkpoint, model, reduced)
        found, comparing = _timed(compare, model, reduced)
    same = found.same and report["fixed"] == account["total"]["unidentified"]
    return {"audit": auditing, "reduce": reducing, "compare": comparing, "same": same}


# ---- a side in a process of its own

SIDES = {
    "measure": measured_rank,
    "plain": plain_rank,
    "metrics": metrics_times,
    "recorder": recorder_times,
    "checkpoint": checkpoint_times,
}


def child(name, *arguments):
    """Run one side in this process and print what it measured, its peak memory (MiB) included, as
    JSON.
    """
    torch.func.vmap(torch.func.jacrev(torch.sin))(
        torch.zeros(2)
    )  # first use is not what is measured
    if name in ("metrics", "recorder"):
        torch.set_num_threads(1)
    result = SIDES[name](*arguments)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024 if sys.platform == "darwin" else 1
    )
    print(json.dumps(result | {"peak": kilobytes / 1024}))


def measured_apart(*words):
    command = [sys.executable, "-m", "attnid", "bench", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    """Print each of our ways beside the plain one; on stderr, what is on its way."""
    parts = {
        "the rank of a Jacobian": compare_ranks,
        "the metrics of heads": compare_metrics,
        "a training step": compare_recorder,
        "a model that people use": compare_checkpoint,
    }
    print(f"{len(parts)} parts, about three minutes in all on two cores", file=sys.stderr)
    for number, (what, compare) in enumerate(parts.items(), 1):
        print(f"part {number} of {len(parts)}: {what} ...", file=sys.stderr)
        compare()


def compare_ranks():
    """Measured rank against the plain way: the median of a few rounds in turn."""
    ours, plain = [], []
    for _ in range(ROUNDS):
        ours.append(measured_apart("measure"))
        plain.append(measured_apart("plain", str(ours[-1]["sequences"]), str(ours[-1]["tokens"])))
    median = lambda runs, key: sorted(run[key] for run in runs)[len(runs) // 2]
    if {run["rank"] for run in ours} != {run["rank"] for run in plain}:
        raise SystemExit(f"ranks differ: {ours[0]['rank']} and {plain[0]['rank']}")
    print(
        f"rank of the Jacobian of Attention(32, 4), {ours[0]['rank']} both ways, median of "
        f"{ROUNDS} runs in turn"
    )
    for name, runs in (("measure", ours), ("jacrev + matrix_rank", plain)):
        total, building = median(runs, "seconds"), median(runs, "jacobian")
        parts = f"of which Jacobian {building:5.2f} s and rank {total - building:5.2f} s"
        print(f"  {name:21} {total:6.2f} s, {parts}; peak {median(runs, 'peak'):6.0f} MiB")
    faster, smaller = (
        median(plain, "seconds") / median(ours, "seconds"),
        median(ours, "peak") / median(plain, "peak"),
    )
    print(f"  {faster:.1f} times as fast, at {smaller:.2f} of the peak memory")
    print(
        f"  limit: the singular values alone of the matrix that is left take "
        f"{median(ours, 'limit'):.2f} s"
    )


def compare_metrics():
    """The head metrics against the plain loop, and what bounds them."""
    times = measured_apart("metrics")
    if times["apart"] > 1e-8:
        raise SystemExit(f"metrics differ by a relative {times['apart']:.1e}")
    ms = {name: 1e3 * value for name, value in times.items()}
    print(
        "metrics of 36 heads, D = 64, E = 384, the same numbers both ways, one thread, least "
        "of 40 rounds in turn"
    )
    print(f"  head_metrics          {ms['batched']:6.1f} ms")
    print(
        f"  loop over heads       {ms['loop']:6.1f} ms, {ms['loop'] / ms['batched']:.1f} times "
        f"as long"
    )
    print(
        f"  limit: the eigendecompositions alone take {ms['eigh']:.1f} ms, the six products of "
        f"D x E matrices {ms['products']:.1f} ms"
    )


def compare_recorder():
    """What measuring adds to a training step."""
    times = measured_apart("recorder")
    step, measurement = 1e3 * times["step"], 1e3 * times["measurement"]
    share = measurement / step / times["every"]
    print("a training step at the laptop preset, one thread, median of 60 in turn")
    print(
        f"  step {step:.1f} ms, measurement {measurement:.1f} ms; every {times['every']} steps "
        f"it adds {share:.1%} to a step"
    )


def compare_checkpoint():
    """How long audit, reduce and compare take."""
    times = measured_apart("checkpoint")
    if not times["same"]:
        raise SystemExit("the reduced model is not the same function")
    print("a model of the sizes of SmolLM2-135M, 30 layers, random weights in float32")
    print(
        "  " + ", ".join(f"{what} {times[what]:.1f} s" for what in ("audit", "reduce", "compare"))
    )
