"""The corpora: the right text or a clear error, and an entropy rate that the text itself bears out."""

import hashlib
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pooch
import pytest
import requests
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid.training import data
from attnid.training.data import CorpusError, load_corpus

SMALL = b"First Citizen:\nBefore we proceed, hear me.\n"


# ---- the embedded text


def test_embedded_is_the_same_text_everywhere():
    corpus = load_corpus("embedded")
    assert (
        corpus.sha256
        == data.EMBEDDED_SHA256
        == hashlib.sha256(data.embedded_text().encode()).hexdigest()
    )
    assert data.embedded_text(seed=2) != data.embedded_text()


def test_splitmix64_gives_the_published_numbers():
    bits = data._splitmix64(1234567)
    assert [next(bits) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def parse(sentence):
    """Every parse of a sentence: its pattern, and its word for each list. Knows the source's tables, not its code."""
    parses = []
    for pattern in data.SENTENCES:
        pieces, seen = re.split(r"{(\w+)}", pattern), set()
        for i in range(1, len(pieces), 2):
            key = pieces[i]
            pieces[i] = f"(?P={key})" if key in seen else f"(?P<{key}>{'|'.join(data.WORDS[key])})"
            seen.add(key)
        pieces[::2] = [re.escape(piece) for piece in pieces[::2]]
        match = re.fullmatch("".join(pieces), sentence)
        if match:
            parses.append((pattern, match.groupdict()))
    return parses


def surprisal(sentence):
    """Minus the log probability of a sentence under the source, in nats."""
    ((pattern, words),) = parse(sentence)
    nats = math.log(sum(data.SENTENCES.values()) / data.SENTENCES[pattern])
    for key, word in words.items():
        n = len(data.WORDS[key])
        nats += math.log(n * (n + 1) / 2 / (n - data.WORDS[key].index(word)))
    return nats


def test_embedded_sentences_have_one_parse():
    text = data.embedded_text(sentences=20_000, seed=7)
    assert {len(parse(sentence)) for sentence in set(text.splitlines(keepends=True))} == {1}


def test_words_and_patterns_show_the_parse():
    listed = [word for words in data.WORDS.values() for word in words]
    fixed = {
        word
        for pattern in data.SENTENCES
        for word in re.findall(r"\w+", re.sub(r"{\w+}", "", pattern))
    }
    assert len(set(listed)) == len(listed) and not fixed & set(listed)
    assert all(word.isalpha() for word in listed)
    assert all(pattern.index("\n") == len(pattern) - 1 for pattern in data.SENTENCES)
    longest = {key: max(words, key=len) for key, words in data.WORDS.items()}
    assert max(len(pattern.format(**longest)) for pattern in data.SENTENCES) < 64


@pytest.mark.parametrize("seed", [data.EMBEDDED_SEED, 2, 3])
def test_entropy_rate_agrees_with_the_text(seed):
    sentences = data.embedded_text(seed=seed).splitlines(keepends=True)
    nats = torch.tensor([surprisal(s) for s in sentences], dtype=torch.float64)
    length = torch.tensor([len(s) for s in sentences], dtype=torch.float64)
    rate = data.embedded_entropy_rate()
    error = ((nats - rate * length).std() * math.sqrt(len(sentences)) / length.sum()).item()
    assert error < 0.005 * rate  # sharp enough to see half a percent
    assert abs((nats.sum() / length.sum()).item() - rate) < 4 * error


def test_entropy_rate_is_the_enumerated_one(monkeypatch):
    # with two words a list, all sentences can be written out
    monkeypatch.setattr(data, "WORDS", {key: words[:2] for key, words in data.WORDS.items()})
    nats = length = mass = 0.0
    for pattern in data.SENTENCES:
        keys = sorted(set(re.findall(r"{(\w+)}", pattern)))
        for choice in range(2 ** len(keys)):
            sentence = pattern.format(
                **{key: data.WORDS[key][choice >> i & 1] for i, key in enumerate(keys)}
            )
            p = math.exp(-surprisal(sentence))
            mass, nats, length = (
                mass + p,
                nats + p * surprisal(sentence),
                length + p * len(sentence),
            )
    assert mass == pytest.approx(1, abs=1e-12)
    assert data.embedded_entropy_rate() == pytest.approx(nats / length, rel=1e-12)


def test_embedded_is_worth_learning():
    corpus = load_corpus("embedded")
    share = torch.bincount(corpus.train) / len(corpus.train)
    unigram = -(share * share.log()).sum().item()
    assert (
        len(corpus.vocabulary) >= 20 and 190_000 <= len(corpus.train) + len(corpus.val) <= 210_000
    )
    assert corpus.entropy_rate < unigram / 5


# ---- encoding


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_decode_undoes_encode(draw):
    corpus = load_corpus("embedded")
    text = draw.draw(st.text(alphabet=corpus.vocabulary, max_size=50))
    ids = corpus.encode(text)
    assert ids.dtype == torch.int64 and ids.shape == (len(text),)
    assert corpus.decode(ids) == text


def test_split_and_vocabulary():
    corpus = load_corpus("embedded")
    text = data.embedded_text()
    assert corpus.vocabulary == "".join(sorted(set(text)))
    assert len(corpus.train) == int(0.9 * len(text))
    assert corpus.decode(corpus.train) + corpus.decode(corpus.val) == text


def test_bad_input_is_named():
    corpus = load_corpus("embedded")
    with pytest.raises(ValueError, match="'é'"):
        corpus.encode("café")
    for ids in ([0, len(corpus.vocabulary)], [-1], torch.tensor([0.5])):
        with pytest.raises(ValueError, match="ids"):
            corpus.decode(ids)
    for ids in ("Ada", "", None, [None], ["A"], [[1], [2, 3]], [2**70], {"a": 1}):
        with pytest.raises(ValueError, match="^ids=" + re.escape(repr(ids))):
            corpus.decode(ids)
    with pytest.raises(ValueError, match="name='shakespeare'"):
        load_corpus("shakespeare")


# ---- tiny Shakespeare


def test_tiny_shakespeare():
    folder = os.environ.get("ATTNID_DATA")
    if not folder or not any((Path(folder) / name).is_file() for name in data.FILE_NAMES):
        pytest.skip("ATTNID_DATA names no folder with tinyshakespeare.txt or input.txt")
    corpus = load_corpus("tiny_shakespeare")
    assert (len(corpus.train), len(corpus.val), len(corpus.vocabulary)) == (1_003_854, 111_540, 65)
    assert corpus.vocabulary.startswith("\n !$&',-.3:;?ABC") and corpus.entropy_rate is None
    assert (
        corpus.decode(corpus.train[:14]) == "First Citizen:"
        and corpus.sha256 == data.SHAKESPEARE_SHA256
    )


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A small text in tiny Shakespeare's place, an empty cache, no ATTNID_DATA, and a counted network that has the text."""
    monkeypatch.delenv("ATTNID_DATA", raising=False)
    monkeypatch.setattr(data, "SHAKESPEARE_SHA256", hashlib.sha256(SMALL).hexdigest())
    monkeypatch.setattr(
        data.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name)
    )
    calls = []
    serve(monkeypatch, SMALL, calls)
    return tmp_path / "cache" / "attnid" / "tinyshakespeare.txt", calls


class Answer:
    """What a server sends."""

    def __init__(self, content):
        self.content, self.headers = content, {}

    def raise_for_status(self):
        pass

    def iter_content(self, chunk_size):
        yield self.content


def serve(monkeypatch, content, calls):
    def get(url, **options):
        calls.append(url)
        if isinstance(content, Exception):
            raise content
        return Answer(content)

    monkeypatch.setattr(requests, "get", get)


def no_files(folder):
    return not folder.exists() or not any(folder.iterdir())


def test_download_happens_once(small, capfd):
    path, calls = small
    corpus = load_corpus("tiny_shakespeare")
    assert corpus.decode(corpus.train) + corpus.decode(corpus.val) == SMALL.decode()
    assert path.read_bytes() == SMALL and [p.name for p in path.parent.iterdir()] == [path.name]
    assert load_corpus("tiny_shakespeare").sha256 == corpus.sha256 and calls == [
        data.SHAKESPEARE_URL
    ]
    assert capfd.readouterr() == ("", "")  # nothing that would get into a stored output


@pytest.mark.parametrize("name", data.FILE_NAMES)
def test_given_folder_comes_first(small, tmp_path, monkeypatch, name):
    (tmp_path / name).write_bytes(SMALL)
    monkeypatch.setenv("ATTNID_DATA", str(tmp_path))
    load_corpus("tiny_shakespeare")
    assert small[1] == [] and no_files(small[0].parent)


@pytest.mark.parametrize("content", [SMALL[:-5], b"f" + SMALL[1:], b""])
@pytest.mark.parametrize("where", ["given", "cache", "network"])
def test_wrong_file_is_refused_wherever_it_lies(small, tmp_path, monkeypatch, content, where):
    path, calls = small
    if where == "given":
        (tmp_path / "input.txt").write_bytes(content)
        monkeypatch.setenv("ATTNID_DATA", str(tmp_path))
    elif where == "cache":
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    else:
        serve(monkeypatch, content, calls)
    with pytest.raises(CorpusError, match="(?i)sha256") as refusal:
        load_corpus("tiny_shakespeare")
    assert ("try again" if where == "network" else "delete it") in str(refusal.value)
    assert where == "cache" or no_files(path.parent)


@pytest.mark.parametrize(
    "failure",
    [
        requests.ConnectionError("no route"),
        requests.Timeout("slow"),
        requests.HTTPError("404"),
        TimeoutError("slow"),
    ],
)
def test_no_network_says_what_to_do(small, monkeypatch, failure):
    serve(monkeypatch, failure, small[1])
    with pytest.raises(CorpusError, match="ATTNID_DATA"):
        load_corpus("tiny_shakespeare")
    assert no_files(small[0].parent)


@pytest.mark.parametrize("name", ["a_file", "absent"])
def test_given_folder_that_is_none_is_named(small, tmp_path, monkeypatch, name):
    load_corpus("tiny_shakespeare")  # now in the cache, which does not hide the mistake
    (tmp_path / "a_file").write_bytes(SMALL)
    monkeypatch.setenv("ATTNID_DATA", str(tmp_path / name))
    with pytest.raises(
        CorpusError, match=f"ATTNID_DATA='{tmp_path / name}' is not a folder: set it to"
    ):
        load_corpus("tiny_shakespeare")


def test_given_folder_without_the_file_is_mentioned(small, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNID_DATA", str(tmp_path))
    serve(monkeypatch, TimeoutError("slow"), small[1])
    with pytest.raises(
        CorpusError,
        match=f"slow.*ATTNID_DATA='{tmp_path}' was looked at: it has no tinyshakespeare.txt or input.txt",
    ):
        load_corpus("tiny_shakespeare")


def test_cache_that_cannot_be_made(small, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(CorpusError, match="cache folder .* ATTNID_DATA"):
        load_corpus("tiny_shakespeare")
    assert small[1] == []  # told before anything was downloaded


def test_failed_write_leaves_nothing(small, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(pooch.core.shutil, "move", fail)
    with pytest.raises(CorpusError, match="disk full"):
        load_corpus("tiny_shakespeare")
    assert no_files(small[0].parent)


def test_import_touches_neither_network_nor_disk(tmp_path):
    # sockets and writes raise while the modules are imported; the cache folder's parent stays empty
    code = (
        "import builtins, io, os, socket, sys, torch, platformdirs\n"
        "def no(*a, **k): raise AssertionError('touched')\n"
        "socket.socket = os.mkdir = os.makedirs = os.open = no\n"
        "sys.dont_write_bytecode = True\n"
        "import attnid.training.data, attnid.network.gpt, attnid.training.trainer\n"
    )
    environment = os.environ | {
        "XDG_CACHE_HOME": str(tmp_path),
        "ATTNID_DATA": str(tmp_path / "absent"),
    }
    subprocess.run([sys.executable, "-B", "-c", code], check=True, env=environment)
    assert no_files(tmp_path)
