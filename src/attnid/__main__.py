"""`python -m attnid …`: the commands of the package."""

import argparse


def count(text):
    """A count in the words of a command, at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def main():
    parser = argparse.ArgumentParser(prog="python -m attnid", description="Identified Attention, from the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="time the measured count against the plain way, and compare peak memory")
    sides = bench.add_subparsers(dest="side", help=argparse.SUPPRESS)  # one side, in a process of its own
    sides.add_parser("measure")
    plain = sides.add_parser("plain")
    for size in ("sequences", "tokens"):
        plain.add_argument(size, type=count)
    arguments = parser.parse_args()
    from . import bench as benchmarks
    if arguments.side is None:
        benchmarks.main()
    else:
        benchmarks.child(arguments.side, *([arguments.sequences, arguments.tokens] if arguments.side == "plain" else []))


if __name__ == "__main__":
    main()
