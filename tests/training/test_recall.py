"""The text of recall: lists and questions about them, and what the best reader makes of it."""

import hashlib
import math
import re
from collections import Counter

import pytest
import torch

from attnid.training import data, recall
from attnid.training.data import load_corpus, recall_text

LINE = re.compile(r"((?:[a-p][A-P]){8}): ((?:[a-p][A-P]){8})\n")


def pairs(text):
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def test_it_is_the_same_text_everywhere():
    corpus = load_corpus("recall")
    assert corpus.sha256 == recall.RECALL_SHA256
    assert corpus.sha256 == hashlib.sha256(recall_text().encode()).hexdigest()
    assert len(corpus.vocabulary) == 35 and len(corpus.train) + len(corpus.val) == 1_050_000
    assert recall_text(10) == recall_text()[:350] != recall_text(10, seed=2)


def test_each_line_is_a_list_without_a_key_twice_and_questions_that_it_answers():
    for line in recall_text(2000).splitlines(keepends=True):
        listed, asked = (pairs(part) for part in LINE.fullmatch(line).groups())
        assert len({key for key, _ in listed}) == 8 and set(asked) <= set(listed)
        assert len(line) == recall.line_length() == 35


def test_all_draws_are_uniform():
    """Counts of keys at their place, of values, and of the places that are asked for, within 4.5 standard errors."""
    counts, lines = Counter(), recall_text(20_000).splitlines()
    for line in lines:
        listed, asked = (pairs(part) for part in line.split(": "))
        counts.update((i, key) for i, (key, _) in enumerate(listed))
        counts.update(("value", value) for _, value in listed)
        counts.update(("asked", listed.index(query)) for query in asked)
    assert len(counts) == 8 * 16 + 16 + 8
    for (what, _), found in counts.items():
        n, options = (len(lines), 16) if isinstance(what, int) else (8 * len(lines), 16)
        options = 8 if what == "asked" else options
        expected = n / options
        assert abs(found - expected) < 4.5 * math.sqrt(expected * (1 - 1 / options)), what


def surprisals(text):
    """What each character tells the best reader, who knows the line so far, in nats. Reads, and knows no formula."""
    found, known, last = [], {}, None
    asking = False
    for character in text:
        if character in " :\n":
            nats, asking = 0.0, character == " "
            known = {} if character == "\n" else known
        elif character.islower():
            nats = math.log(len(known)) if asking else math.log(16 - len(known))
            last = character
        elif asking:
            assert character == known[last]
            nats = 0.0
        else:
            nats, known = math.log(16), known | {last: character}
        found.append(nats)
    return torch.tensor(found, dtype=torch.float64)


def test_entropy_rate_is_what_the_best_reader_finds():
    found = surprisals(recall_text(500))
    rate = recall.recall_entropy_rate()
    assert found.mean().item() == pytest.approx(rate, rel=1e-12)
    assert load_corpus("recall").entropy_rate == rate == pytest.approx(1.682, abs=1e-3)
    known = (found == 0).double().mean().item()
    assert recall.predictable_share() == pytest.approx(known) == 11 / 35


def test_windows_one_after_the_other_begin_everywhere():
    """So the floor of evaluating all windows of 64, from the 35th token on, is the entropy rate."""
    found, T = surprisals(recall_text(2001))[1:], 64
    windows = found[: len(found) // T * T].view(-1, T)[:, recall.line_length() :]
    assert {64 * i % 35 for i in range(35)} == set(range(35))
    assert windows.mean().item() == pytest.approx(recall.recall_entropy_rate(), rel=2e-3)


def test_entropy_rate_is_the_enumerated_one(monkeypatch):
    """With three keys, two values, two pairs and two questions all 96 lines can be seen, each as often."""
    for name, value in dict(KEYS="abc", VALUES="AB", PAIRS=2, QUERIES=2).items():
        monkeypatch.setattr(recall, name, value)
    text = recall.recall_text(data._splitmix64(5), 50_000)
    counts = Counter(text.splitlines())
    assert len(counts) == 96 == 3 * 2 * 2**2 * 2**2
    assert max(abs(n / 50_000 * 96 - 1) for n in counts.values()) < 4.5 * math.sqrt(96 / 50_000)
    assert recall.recall_entropy_rate() == pytest.approx(math.log(96) / len("aAbB: aAbB\n"))


def test_without_looking_back_much_more_is_lost():
    """Answers by chance cost ln 16 each: what attention is worth here, 8 ln 16 / 35 nats a character or less."""
    corpus = load_corpus("recall")
    share = torch.bincount(corpus.train) / len(corpus.train)
    unigram = -(share * share.log()).sum().item()
    assert unigram > corpus.entropy_rate + 8 * math.log(16) / 35
