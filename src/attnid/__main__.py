"""`python -m attnid …`: the commands of the package."""

import argparse
import sys


def count(text):
    """A count in the words of a command, at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def add_runs(commands):
    """The commands that train. What they accept is checked where the runs are described, so that nothing is said twice."""
    train = commands.add_parser("train", help="one training run, with its measurements, as a record in a file")
    train.add_argument("--case", required=True, help="what the run does: sgd, sgd-decay, adamw, rebalanced, cleared or moved")
    train.add_argument("--seed", type=int, default=0, help="of the weights, the batches and the dropout (default: 0)")
    train.add_argument("--rate", type=float, help="learning rate (default: the case's own)")
    sweep = commands.add_parser("sweep", help="many runs, in worker processes; those that are done are skipped")
    sweep.add_argument("--cases", nargs="+", required=True, help="as of train")
    sweep.add_argument("--seeds", type=count, default=1, help="how many: seeds 0, 1, ... in turn, each for all cases (default: 1)")
    sweep.add_argument("--rates", nargs="+", type=float, help="learning rates (default: each case's own)")
    sweep.add_argument("--workers", type=count, default=1, help="processes at a time, which share the cores (default: 1)")
    sweep.add_argument("--minutes", type=float, help="start no run after this long")
    for parser in (train, sweep):
        parser.add_argument("--preset", required=True, help="how large: smoke (seconds), laptop (minutes) or paper (a GPU's work)")
        parser.add_argument("--precision", help="float32, bfloat16, float16 or float64 (default: the device's best)")
        parser.add_argument("--device", default="cpu", help="cpu, cuda or mps (default: cpu)")
        parser.add_argument("--compile", action="store_true", help="send the model through torch.compile")
        parser.add_argument("--results", default="notebooks/results", help="folder of the records (default: %(default)s)")


def train_or_sweep(arguments):
    """Run what the arguments describe. Returns the exit status."""
    from . import experiments
    options = {"device": arguments.device, "compiled": arguments.compile}
    if arguments.command == "train":
        job = experiments.Job(arguments.preset, arguments.case, arguments.seed, arguments.rate, arguments.precision)
        record = experiments.run(job, arguments.results, **options)
        print(f"{job.path(arguments.results)}: validation loss {record.final_loss:.4f}")
        return 0
    jobs = [experiments.Job(arguments.preset, case, seed, rate, arguments.precision)
            for seed in range(arguments.seeds) for case in arguments.cases for rate in arguments.rates or [None]]
    return 1 if experiments.sweep(jobs, arguments.results, workers=arguments.workers, minutes=arguments.minutes, **options) else 0


def run_benchmarks(arguments):
    """The benchmarks, or one side of one of them. Returns the exit status."""
    from . import bench
    if arguments.side is None:
        bench.main()
    else:
        bench.child(arguments.side, *([arguments.sequences, arguments.tokens] if arguments.side == "plain" else []))
    return 0


def main():
    parser = argparse.ArgumentParser(prog="python -m attnid", description="Identified Attention, from the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    add_runs(commands)
    bench = commands.add_parser("bench", help="time the measured count against the plain way, and compare peak memory")
    sides = bench.add_subparsers(dest="side", help=argparse.SUPPRESS)  # one side, in a process of its own
    sides.add_parser("measure")
    plain = sides.add_parser("plain")
    for size in ("sequences", "tokens"):
        plain.add_argument(size, type=count)
    arguments = parser.parse_args()
    try:
        return run_benchmarks(arguments) if arguments.command == "bench" else train_or_sweep(arguments)
    except (ValueError, ArithmeticError, OSError) as error:
        parser.exit(2, f"{parser.prog} {arguments.command}: {error}\n")


if __name__ == "__main__":
    sys.exit(main())
