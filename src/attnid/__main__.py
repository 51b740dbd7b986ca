"""`python -m attnid …`: the commands of the package."""

import argparse


def main():
    parser = argparse.ArgumentParser(prog="python -m attnid", description="Identified Attention, from the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="time the measured count against the plain way, and compare peak memory")
    bench.add_argument("child", nargs="*", help=argparse.SUPPRESS)  # one side, in a process of its own
    arguments = parser.parse_args()
    from . import bench as benchmarks
    benchmarks.child(*arguments.child) if arguments.child else benchmarks.main()


if __name__ == "__main__":
    main()
