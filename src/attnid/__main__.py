"""`python -m attnid …`: the commands of the package."""

import argparse
import json
import os
import signal
import sys
import time

CASES = """sgd, sgd-decay, adamw; rebalanced (adamw whose query and key weights are rebalanced now
    and then, its state of them cleared), cleared (the state alone), moved (the weights alone);
    adamw with other maps: canonical (layers in canonical form), unheld (that start, nothing held),
    spent (a wider MLP besides), factored, factored-1, factored-4 (query and key maps as products),
    product (the products themselves), heads-1, heads-2, heads-8, heads-16, heads-32 (that many
    heads); with other steps: horizontal (no movement along orbits); with fewer numbers: cut,
    mlp-16, mlp-48, mlp-56 (a narrower MLP), width-8, width-16, width-24 (narrower heads)"""
AGAIN = (
    "A run that is done is not run again; one that was stopped goes on from its last saved state."
)


def count(text):
    """A count in the words of a command, at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def seeds(text):
    """Seeds in the words of a command: how many, from 0 on, or the first and the last."""
    first, dash, last = text.partition("-")
    found = range(int(first), int(last) + 1) if dash else range(count(text))
    if not found:
        raise ValueError
    return found


def say(text):
    """Print what a command has found, and be sure that it is out. OSError where standard output
    takes no more, but not where its reader has left, as `head` does.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would try again at its end
        if not isinstance(error, BrokenPipeError):
            raise OSError(f"standard output: {error}") from None


def add_runs(commands):
    """The commands that train. What they accept is checked where the runs are described, so that
    nothing is said twice.
    """
    train = commands.add_parser(
        "train",
        help="one training run, with its measurements, as a record in a file",
        description=f"""
        Train one model, measure its heads on the way, and write a record, RESULTS/PRESET/CASE/seed-
        SEED.json.xz. {AGAIN}""",
        epilog="example: python -m attnid train --preset smoke --case sgd",
    )
    sweep = commands.add_parser(
        "sweep",
        help="many runs, in worker processes; those that are done are skipped",
        description=f"""
        Train for each seed each case at each rate, and write a record of each. Exit status 1 if a
        run failed. {AGAIN}""",
        epilog="example: python -m attnid sweep --preset laptop --cases sgd adamw --seeds 10 "
        "--workers 2",
    )
    for parser in (train, sweep):
        parser.add_argument(
            "--preset",
            required=True,
            help="""how large: smoke (seconds), laptop (minutes),
            comparison (the same, heads not measured), paper (a GPU's work), or one of the small
            models, a minute each: pilot, pilot-momentum, pilot-decay, pilot-recall,
            pilot-embedded, study""",
        )
    train.add_argument("--case", required=True, help=f"what the run does: {CASES}")
    train.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the weights, the batches and the dropout (default: 0)",
    )
    train.add_argument("--rate", type=float, help="learning rate (default: the case's own)")
    sweep.add_argument(
        "--cases", nargs="+", required=True, metavar="CASE", help=f"what the runs do: {CASES}"
    )
    sweep.add_argument(
        "--seeds",
        type=seeds,
        default=range(1),
        help="""how many: seeds 0, 1, ... in turn, each for all cases; or the first and the last,
            100-102 (default: 1)""",
    )
    sweep.add_argument(
        "--rates",
        nargs="+",
        type=float,
        metavar="RATE",
        help="learning rates (default: each case's own)",
    )
    sweep.add_argument(
        "--workers",
        type=count,
        default=1,
        help="processes at a time, which share the cores (default: 1)",
    )
    sweep.add_argument(
        "--minutes", type=float, help="start no run after this long; those on their way end"
    )
    for parser in (train, sweep):
        parser.add_argument(
            "--precision", help="float32, bfloat16, float16 or float64 (default: the device's best)"
        )
        parser.add_argument("--device", default="cpu", help="cpu, cuda or mps (default: cpu)")
        parser.add_argument(
            "--compile", action="store_true", help="send the model through torch.compile"
        )
        parser.add_argument(
            "--results",
            default="notebooks/results",
            help="folder of the records (default: %(default)s)",
        )


def origin(record, path):
    """Where and when a record was made, in a few words."""
    made = record.provenance
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    return (
        f"made on {made['device']} in {made['precision']}, at commit "
        f"{(made['commit'] or 'unknown')[:9]}; file of {written}"
    )


def train_or_sweep(arguments):
    """Run what the arguments describe. Returns the exit status."""
    from .training import experiments

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    options = {"device": arguments.device, "compiled": arguments.compile}
    if arguments.command == "train":
        job = experiments.Job(
            arguments.preset, arguments.case, arguments.seed, arguments.rate, arguments.precision
        )
        path, done = job.path(arguments.results), experiments.finished(job, arguments.results)
        if done:
            print(
                f"{path}: is there already and was not run again ({origin(done, path)})",
                file=sys.stderr,
            )
        print(f"{path}: {(done or experiments.run(job, arguments.results, **options)).summary}")
        return 0
    jobs = [
        experiments.Job(arguments.preset, case, seed, rate, arguments.precision)
        for seed in arguments.seeds
        for case in arguments.cases
        for rate in arguments.rates or [None]
    ]
    return (
        1
        if experiments.sweep(
            jobs, arguments.results, workers=arguments.workers, minutes=arguments.minutes, **options
        )
        else 0
    )


def add_count(commands):
    """The command that counts the attention layers of a model from its configuration."""
    counts = commands.add_parser(
        "count", help="what of a model's attention parameters is unidentified, from its config.json"
    )
    counts.add_argument(
        "config", metavar="CONFIG", help="a Hugging Face config.json, or a folder with one"
    )
    counts.add_argument(
        "--json", action="store_true", help="print the numbers as JSON instead of a table"
    )


def print_count(arguments):
    """The counts of a model's attention layers. Returns the exit status."""
    from .models import architectures

    architecture = architectures.read_architecture(arguments.config)
    say(
        json.dumps(architectures.report(architecture), indent=2)
        if arguments.json
        else architectures.count_table(architecture)
    )
    return 0


def add_checkpoints(commands):
    """The commands that read a trained model."""
    model = (
        "a Hugging Face folder with config.json and safetensors, or a checkpoint file of nanoGPT"
    )
    audit = commands.add_parser(
        "audit",
        help="what of a trained model's attention is unidentified, head by head",
        description=f"""
        Read a trained model, {model}, and print for each head how far its query and key weights are
        from balance, the condition numbers of its two products, and how many parameters can go
        without changing an output. Nothing is written.""",
        epilog="example: python -m attnid audit path/to/all-MiniLM-L6-v2",
    )
    reduce = commands.add_parser(
        "reduce",
        help="the same model with what is unidentified set by rule",
        description=f"""
        Read a trained model, {model}, and write it to OUT with the same outputs: key biases that
        change nothing become 0, value biases move into the output biases, and the two products of
        each head get factors in the chosen form. The input stays as it is. Nothing is written if a
        layer's outputs would change by more than the tolerance.""",
        epilog="example: python -m attnid reduce path/to/all-MiniLM-L6-v2 reduced --form identity",
    )
    for parser in (audit, reduce):
        parser.add_argument("checkpoint", metavar="CHECKPOINT", help=model)
    reduce.add_argument("out", metavar="OUT", help="where to write it; nothing may be there yet")
    reduce.add_argument(
        "--form",
        default="balanced",
        help="""balanced (query and key weights with equal Gram matrices, nearest to the old),
        identity (of each head's keys and values, as many columns as the head is wide are those of
        the identity, well chosen) or identity-unpivoted (the first columns, whatever comes of it)
        (default: balanced)""",
    )
    reduce.add_argument(
        "--tolerance",
        type=float,
        help="""the largest change allowed, relative to a layer's largest output (default: by the
        file's numbers, 1e-5 for float32, 0.02 for float16, 0.1 for bfloat16)""",
    )
    for parser in (audit, reduce):
        parser.add_argument(
            "--json", action="store_true", help="print the numbers as JSON instead of a table"
        )


def print_account(arguments):
    """The audit of a checkpoint, or what its reduction came to. Returns the exit status."""
    from .models import auditing, reduction

    if arguments.command == "audit":
        account, table = auditing.audit(arguments.checkpoint), auditing.audit_table
    else:
        account = reduction.reduce_checkpoint(
            arguments.checkpoint, arguments.out, form=arguments.form, tolerance=arguments.tolerance
        )
        table = reduction.reduction_table
    for warning in account.get("warnings", ()):
        print(f"python -m attnid {arguments.command}: warning: {warning}", file=sys.stderr)
    say(json.dumps(account, indent=2) if arguments.json else table(account))
    return 0


def add_pairs(commands):
    """The commands that set one trained model beside another."""
    compare = commands.add_parser(
        "compare",
        help="whether two trained models are one function, and if not, which head differs",
        description="""
        Read two trained models of one family and size, layer by layer, and print in which heads,
        circuits and tensors they differ, by how much, and after which of the usual accidents of
        conversions: nothing where they are one function, whatever the gauge of their heads and the
        order of heads and hidden units. Exit status 0 if they are the same, 1 if they differ, 2 on
        an error. Nothing is written.""",
        epilog="example: python -m attnid compare path/to/model path/to/converted",
    )
    align = commands.add_parser(
        "align",
        help="a trained model rewritten into the gauge of another, its function unchanged",
        description="""
        Write the model B to OUT with its function unchanged and its weights as near to those of A
        as its symmetries allow: heads and hidden units matched, each head's two products with
        factors nearest to A's. Nothing is written if outputs would change by more than the
        tolerance.""",
        epilog="example: python -m attnid align path/to/model path/to/finetuned aligned",
    )
    fingerprint = commands.add_parser(
        "fingerprint",
        help="numbers of each head of a trained model that no gauge changes",
        description="""
        Print for each head the norms of its two products, which no gauge changes; with --json all
        singular values and traces. Nothing is written.""",
        epilog="example: python -m attnid fingerprint path/to/model --json",
    )
    adapt = commands.add_parser(
        "adapt",
        help="a LoRA made for one model rewritten for the same model in another gauge",
        description="""
        Write the LoRA in the folder ADAPTER (of peft), made for the model OLD, to OUT so that it
        does to NEW what it did to OLD, where reduce or align made NEW. Nothing is written if
        outputs with the adapter would differ by more than the tolerance.""",
        epilog="example: python -m attnid adapt path/to/lora path/to/model reduced lora-reduced",
    )
    adapt.add_argument("adapter", metavar="ADAPTER", help="a folder with adapter_config.json")
    adapt.add_argument("old", metavar="OLD", help="the trained model that it was made for")
    adapt.add_argument("new", metavar="NEW", help="the same model in another gauge")
    adapt.add_argument("out", metavar="OUT", help="where to write it; nothing may be there yet")
    for parser in (compare, align):
        parser.add_argument("a", metavar="A", help="a trained model, as for audit")
        parser.add_argument("b", metavar="B", help="another of the same family and size")
    fingerprint.add_argument("checkpoint", metavar="CHECKPOINT", help="a trained model")
    align.add_argument("out", metavar="OUT", help="where to write it; nothing may be there yet")
    for parser, words in (
        (compare, "the largest distance, relative, that counts as none (default: by the numbers'"),
        (align, "the largest change of outputs allowed, relative (default: by the numbers'"),
        (adapt, "the largest change of outputs allowed, relative (default: by the numbers'"),
    ):
        parser.add_argument("--tolerance", type=float, help=f"{words} own precision)")
    for parser in (compare, align, adapt, fingerprint):
        parser.add_argument(
            "--json", action="store_true", help="print the numbers as JSON instead of a table"
        )


def print_pair(arguments):
    """What compare, align or fingerprint found. Returns the exit status."""
    from dataclasses import asdict

    from .models import adapters, alignment, comparison, fingerprints

    if arguments.command == "compare":
        found = comparison.compare(arguments.a, arguments.b, arguments.tolerance)
        account, table = asdict(found), comparison.comparison_table(found)
    elif arguments.command == "align":
        account = alignment.align(
            arguments.a, arguments.b, arguments.out, tolerance=arguments.tolerance
        )
        table = alignment.alignment_table(account)
    elif arguments.command == "adapt":
        paths = arguments.adapter, arguments.old, arguments.new, arguments.out
        account = adapters.rewrite_adapter(*paths, tolerance=arguments.tolerance)
        table = adapters.adapter_table(account)
    else:
        prints = fingerprints.fingerprint(arguments.checkpoint)
        account, table = prints.as_dict(), fingerprints.fingerprint_table(prints)
    for warning in account.get("warnings", ()):
        print(f"python -m attnid {arguments.command}: warning: {warning}", file=sys.stderr)
    say(json.dumps(account, indent=2) if arguments.json else table)
    return 1 if account.get("same") is False else 0


def run_benchmarks(arguments):
    """The benchmarks, or one side of one of them. Returns the exit status."""
    from . import bench

    if arguments.side is None:
        bench.main()
    else:
        bench.child(
            arguments.side,
            *([arguments.sequences, arguments.tokens] if arguments.side == "plain" else []),
        )
    return 0


def main():
    sys.stdout.reconfigure(errors="backslashreplace")  # of a path that it cannot show
    parser = argparse.ArgumentParser(
        prog="python -m attnid", description="Identified Attention, from the command line."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_runs(commands)
    add_count(commands)
    add_checkpoints(commands)
    add_pairs(commands)
    bench = commands.add_parser(
        "bench",
        help="time the package against the plain ways, and compare peak memory",
        description="""
        Measure four things, in about three minutes on two cores: the rank of a layer's Jacobian,
        against jacrev and matrix_rank, in time and peak memory; the metrics of 36 heads in one
        batch, against a loop over heads, in time; the share of a training step that measuring the
        heads adds; and how long audit, reduce and compare take for a model of SmolLM2's sizes.
        Nothing is written but files that are gone at the end.""",
    )
    sides = bench.add_subparsers(
        dest="side", help=argparse.SUPPRESS
    )  # one side, in a process of its own
    for side in ("measure", "metrics", "recorder", "checkpoint"):
        sides.add_parser(side)
    plain = sides.add_parser("plain")
    for size in ("sequences", "tokens"):
        plain.add_argument(size, type=count)
    arguments = parser.parse_args()
    try:
        if arguments.command == "count":
            return print_count(arguments)
        if arguments.command in ("audit", "reduce"):
            return print_account(arguments)
        if arguments.command in ("compare", "align", "adapt", "fingerprint"):
            return print_pair(arguments)
        return (
            run_benchmarks(arguments) if arguments.command == "bench" else train_or_sweep(arguments)
        )
    except (ValueError, ArithmeticError, OSError) as error:
        parser.exit(2, f"{parser.prog} {arguments.command}: {error}\n")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the workers have ended, and so does this
        parser.exit(
            130, f"\n{parser.prog} {arguments.command}: interrupted; repeat the command to go on\n"
        )


if __name__ == "__main__":
    sys.exit(main())
