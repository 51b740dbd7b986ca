"""Corpora of characters: tiny Shakespeare, and two texts that the package makes itself, whose
entropy rates are known exactly.
"""

import hashlib
import math
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

import platformdirs
import torch
from jaxtyping import Int64
from torch import Tensor

from .recall import RECALL_LINES, RECALL_SEED, recall_entropy_rate
from .recall import recall_text as recall_lines

NAMES = ("tiny_shakespeare", "embedded", "recall")

# tiny Shakespeare: a public-domain text as distributed with the public repository karpathy/char-rnn
SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
FILE_NAMES = ("tinyshakespeare.txt", "input.txt")

EMBEDDED_SHA256 = "4e7f3bb4eb535d8f98c79ed7dd71b7d5867c251472ed58c1a201adbce97b404a"
EMBEDDED_SENTENCES = 6_000
EMBEDDED_SEED = 1


class CorpusError(OSError):
    """A corpus could not be read, fetched or kept, or is not the text it should be. The message
    says what to do.
    """


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as token numbers, split as nanoGPT splits it: the first int(0.9 n) characters train,
    the rest validate.

    train, val: int64 tensors of shape (n,), a number below len(vocabulary) for each character.
    vocabulary: the distinct characters in sorted order; a character's number is its place. sha256:
    of the whole text in UTF-8. entropy_rate: in nats per character, None where nobody knows it.

    >>> corpus = load_corpus("embedded")
    >>> corpus.decode(corpus.encode("the cat"))
    'the cat'
    """

    name: str
    train: Int64[Tensor, "n"] = field(repr=False)
    val: Int64[Tensor, "m"] = field(repr=False)
    vocabulary: str
    sha256: str
    entropy_rate: float | None

    def encode(self, text) -> Int64[Tensor, "n"]:
        """Text -> int64 tensor (n,). ValueError for a character that the corpus does not have."""
        return torch.tensor(_encode(text, self.vocabulary), dtype=torch.int64)

    def decode(self, ids):
        """Token numbers, a tensor (n,) or a list -> text. ValueError for anything else, or a number
        outside the vocabulary.
        """
        try:
            ids = torch.as_tensor(ids).reshape(-1).tolist()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"ids={ids!r}: must be a tensor or a list of token numbers") from error
        wrong = [i for i in ids if not (isinstance(i, int) and 0 <= i < len(self.vocabulary))]
        if wrong:
            last = len(self.vocabulary) - 1
            raise ValueError(f"ids: {wrong[0]!r} is not a token number from 0 to {last}")
        return "".join(self.vocabulary[i] for i in ids)


def load_corpus(name):
    """The corpus called `name`: "tiny_shakespeare", "embedded" or "recall". Another name raises
    ValueError.

    Tiny Shakespeare is read from the folder that the environment variable ATTNID_DATA names
    (tinyshakespeare.txt or input.txt), else from the user's cache folder, else downloaded into that
    folder, once. Its sha256 is checked wherever it lies. CorpusError when it cannot be had, is not
    the right text, or ATTNID_DATA names no folder. The embedded text (sentences) and recall (keys
    and values, then questions about them; see `recall`) need no file.

    >>> corpus = load_corpus("embedded")
    >>> len(corpus.vocabulary), round(corpus.entropy_rate, 2)
    (43, 0.25)
    """
    if name == "tiny_shakespeare":
        return _corpus(name, _shakespeare(), None)
    if name == "embedded":
        return _corpus(name, embedded_text(), embedded_entropy_rate())
    if name == "recall":
        return _corpus(name, recall_text(), recall_entropy_rate())
    raise ValueError(f"name={name!r}: must be one of {NAMES}")


def _corpus(name, text, entropy_rate):
    vocabulary = "".join(sorted(set(text)))
    tokens = torch.tensor(_encode(text, vocabulary), dtype=torch.int64)  # (n,)
    cut, sha256 = int(0.9 * len(text)), hashlib.sha256(text.encode()).hexdigest()
    return Corpus(name, tokens[:cut], tokens[cut:], vocabulary, sha256, entropy_rate)


def _encode(text, vocabulary):
    number = {character: i for i, character in enumerate(vocabulary)}
    unknown = sorted(set(text) - set(vocabulary))
    if unknown:
        raise ValueError(f"text: the character {unknown[0]!r} is not in the vocabulary")
    return [number[character] for character in text]


# ---- tiny Shakespeare: a checked file


def _shakespeare():
    cache, given = Path(platformdirs.user_cache_dir("attnid")), os.environ.get("ATTNID_DATA")
    if given and not os.path.isdir(given):
        what_to_do = f"set it to the folder that holds {FILE_NAMES[0]}, or unset it"
        raise CorpusError(f"ATTNID_DATA={given!r} is not a folder: {what_to_do}")
    for path in [Path(folder) / file for folder in (given, cache) if folder for file in FILE_NAMES]:
        if os.path.isfile(path):
            return _read(path)
    return _read(_fetch(cache, given))


def _read(path):
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        what_to_do = "make it readable, or set ATTNID_DATA to another folder"
        raise CorpusError(f"{path} cannot be read ({error}): {what_to_do}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHAKESPEARE_SHA256:
        what_to_do = "delete it, and it is downloaded again, or put the right file in its place"
        what = f"has {len(content):,} bytes and sha256 {digest}, not {SHAKESPEARE_SHA256}"
        raise CorpusError(f"{path} {what}: {what_to_do}")
    return content.decode()


def _fetch(cache, given):
    """Download the text into the cache folder, whole and right or not at all. Returns its path."""
    import pooch

    pooch.get_logger().setLevel("WARNING")  # what it says on its way would get into stored outputs
    sha256, name = f"sha256:{SHAKESPEARE_SHA256}", FILE_NAMES[0]
    try:
        return pooch.retrieve(SHAKESPEARE_URL, sha256, name, cache)
    except (OSError, ValueError) as error:  # of the network or the disk, or another text
        names = " or ".join(FILE_NAMES)
        looked = f" (ATTNID_DATA={given!r} was looked at: it has no {names})" if given else ""
        raise CorpusError(
            f"tiny Shakespeare could not be downloaded into the cache folder {cache} "
            f"({error}): try again with a network "
            f"and a folder that can be written, or fetch {SHAKESPEARE_URL} by other means as "
            f"{name}, and set ATTNID_DATA "
            f"to its folder{looked}"
        ) from error


# ---- the embedded text: sentences from a small source with integer weights

# word lists: of n words the first has weight n, the second n - 1, the last 1
WORDS = {
    "one": "owl fox hen cat mouse goose bear toad".split(),
    "many": "owls foxes hens cats mice geese bears toads".split(),
    "does": "sleeps sings waits runs hides dreams jumps hums".split(),
    "do": "sleep sing wait run hide dream jump hum".split(),
    "helps": "sees helps hears finds thanks calls meets likes".split(),
    "quiet": "quiet old young brave tiny hungry merry clever".split(),
    "river": "river rivers gate gates hill hills willow willows".split(),
    "Ada": "Ada Ben Cleo Dora Emil Finn Gus Hana".split(),
}

# sentence -> weight; each {list} is one drawn word, the same word wherever it stands again in the
# sentence
SENTENCES = {
    "The {quiet} {one} by the {river} {does}.\n": 3,
    "The {quiet} {many} by the {river} {do}.\n": 3,
    "The {one} (so {quiet}) {does}.\n": 2,
    "The {many} (so {quiet}) {do}.\n": 2,
    '"The {one} by the {river} {does}," says {Ada}.\n': 1,
    '"The {many} by the {river} {do}," says {Ada}.\n': 1,
    "{Ada} {helps} the {one}, and the {one} {helps} {Ada}.\n": 3,
    "Oh {do}, {Ada}, {do}!\n": 1,
}


def embedded_entropy_rate():
    """Entropy rate of the source of the embedded text, in nats per character, exactly: H(sentence)
    / E[length].

    Sentences are drawn one by one, independently: first a pattern from SENTENCES, then a word for
    each of its lists. Four
    steps give the rate of the *character* process.
    (1) A sentence can be parsed in one way only: with its spaces and punctuation it shows its
        pattern (the word lists are disjoint), and the pattern shows its words. So H(sentence) =
        H(pattern) + sum_p P(p) sum of H(list) over the lists in p: a list that stands twice in a
        pattern is drawn, and counted, once.
    (2) A newline ends each sentence and stands nowhere else, so a text splits into its sentences in
        one way only: the characters and the sentences carry the same information.
    (3) Among the first n characters, n / E[length] sentences are complete, to first order, by the
        renewal theorem; the one that is not complete adds at most H(sentence), which n divides
        away. E[length] is linear: letters that a pattern fixes, plus the mean length of a list
        times how often it stands.
    (4) So the entropy of n characters, over n, tends to H(sentence) / E[length].
    No model that predicts the next character can have a lower expected loss, and one that sees the
    whole of the sentence
    so far, fewer than 64 characters, can reach it.
    """
    total = sum(SENTENCES.values())
    nats, length = _entropy(list(SENTENCES.values())), 0.0
    for pattern, weight in SENTENCES.items():
        lists = re.findall(r"{(\w+)}", pattern)
        fixed, share = len(re.sub(r"{\w+}", "", pattern)), weight / total
        nats += share * sum(_entropy(_weights(key)) for key in sorted(set(lists)))
        length += share * (fixed + sum(_mean_length(key) for key in lists))
    return nats / length


def _weights(key):
    return list(range(len(WORDS[key]), 0, -1))


def _entropy(weights):
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights)


def _mean_length(key):
    return sum(w * len(word) for w, word in zip(_weights(key), WORDS[key])) / sum(_weights(key))


@lru_cache
def embedded_text(sentences=EMBEDDED_SENTENCES, seed=EMBEDDED_SEED):
    """The embedded text: `sentences` sentences, a line each. The same characters on every machine:
    only integers decide.
    """
    return "".join(islice(_sentences(_splitmix64(seed)), sentences))


@lru_cache
def recall_text(lines=RECALL_LINES, seed=RECALL_SEED):
    """The text of recall: so many lines. The same characters on every machine, as above."""
    return recall_lines(_splitmix64(seed), lines)


def _sentences(bits):
    while True:
        pattern = _draw(list(SENTENCES), list(SENTENCES.values()), bits)
        lists = dict.fromkeys(re.findall(r"{(\w+)}", pattern))  # each once, in order of appearance
        yield pattern.format(**{key: _draw(WORDS[key], _weights(key), bits) for key in lists})


def _draw(items, weights, bits):
    # 64 random bits as a place below the sum of the weights; off by less than 2^-58, as no sum
    # reaches 64
    place = (next(bits) * sum(weights)) >> 64
    for item, weight in zip(items, weights):
        if place < weight:
            return item
        place -= weight


def _splitmix64(state):
    # Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators"
    mask = 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)
