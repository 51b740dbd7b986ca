"""A text that only attention can predict: lists of keys with values, then questions about them.

A line is `aHcBdA: cBaH…`: PAIRS keys, no two alike, each with a value; then QUERIES keys of the
list, each with the value that the list gave it.
"""

import math

KEYS, VALUES = "abcdefghijklmnop", "ABCDEFGHIJKLMNOP"
PAIRS = QUERIES = 8
SEPARATOR, END = ": ", "\n"
RECALL_LINES = 30_000
RECALL_SEED = 1
RECALL_SHA256 = "45e76e6c6b137cdcae70e90bd6f9747b5ca13089fcb2099e071e5df5a0363fe0"


def line_length():
    """Characters of a line, all lines being as long. An odd number, so that windows of even length
    one after the other begin at every place of a line alike.
    """
    return 2 * PAIRS + len(SEPARATOR) + 2 * QUERIES + len(END)


def predictable_share():
    """The share of characters that whoever has read the line so far can tell for certain: the
    answers, the separator and the end.
    """
    return (QUERIES + len(SEPARATOR) + len(END)) / line_length()


def recall_entropy_rate():
    """Entropy rate of the source of the text, in nats per character, exactly.

    Lines are drawn one by one, independently, and all have one length, so the rate is the entropy
    of a line over its length. A line shows all its draws, and each is uniform: the i-th key is one
    of the keys that the list does not have yet, a value is any value, a query any key of the list.
    What follows a query, the separator and the end add nothing. So it is

        (sum_{i < PAIRS} ln(|KEYS| - i) + PAIRS ln |VALUES| + QUERIES ln PAIRS) / length.

    No model can have a lower expected loss. One that sees the line so far can reach it; where a
    window begins within a line, even the best has more to guess, so `evaluate` a model with a
    context of line_length().
    """
    keys = sum(math.log(len(KEYS) - i) for i in range(PAIRS))
    nats = keys + PAIRS * math.log(len(VALUES)) + QUERIES * math.log(PAIRS)
    return nats / line_length()


def recall_text(bits, lines=RECALL_LINES):
    """So many lines, drawn from an iterator of random integers of 64 bits: only integers decide."""
    return "".join(_line(bits) for _ in range(lines))


def _line(bits):
    below = lambda n: (next(bits) * n) >> 64  # off from uniform by less than 2^-58
    left = list(KEYS)
    pairs = [left.pop(below(len(left))) + VALUES[below(len(VALUES))] for _ in range(PAIRS)]
    queries = [pairs[below(PAIRS)] for _ in range(QUERIES)]
    return "".join(pairs) + SEPARATOR + "".join(queries) + END
