"""Items in processes of their own: in order, a few at a time, failures told, nothing left behind by an interrupt."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
import torch
from kills import FORKSERVER, kill_self, killed

from attnid.training import processes
from attnid.training.processes import for_each

STARTED_WITH = signal.getsignal(signal.SIGINT)  # of the process that imports this


@pytest.fixture(autouse=True)
def quick_start(monkeypatch):
    monkeypatch.setattr(processes, "get_context", lambda method: FORKSERVER)


def note(folder, item):
    """Leave the name of the item, and how many others are at work."""
    here = folder / f"at-work-{item}"
    here.touch()
    try:
        time.sleep(0.1)
        (folder / f"{time.monotonic()}").write_text(f"{item} {len(list(folder.glob('at-work-*')))}")
    finally:
        here.unlink()


def notes(folder):
    return [
        path.read_text().split()
        for path in sorted(folder.iterdir(), key=lambda path: float(path.name))
    ]


def go_wrong(item):
    if item == "raises":
        raise ValueError("field=value: why")
    if item == "dies":
        kill_self()
    if item == "exits":
        raise SystemExit(3)


def wait_long(folder, item):
    try:
        (folder / f"started-{item}").touch()
        time.sleep(60 if item == "long" else 0)
    finally:
        (folder / f"tidied-{item}").touch()


def test_one_at_a_time_in_order(tmp_path):
    ended = []
    for_each(partial(note, tmp_path), ["a", "b", "c"], lambda *end: ended.append(end))
    assert notes(tmp_path) == [["a", "1"], ["b", "1"], ["c", "1"]] and ended == [
        ("a", ""),
        ("b", ""),
        ("c", ""),
    ]


def test_several_at_a_time(tmp_path):
    ended = []
    for_each(partial(note, tmp_path), "abcde", lambda *end: ended.append(end), workers=3)
    assert (
        sorted(item for item, _ in notes(tmp_path))
        == list("abcde")
        == sorted(item for item, _ in ended)
    )
    assert max(int(count) for _, count in notes(tmp_path)) <= 3


def test_failures_are_told_and_the_others_go_on():
    ended = {}
    for_each(go_wrong, ["raises", "dies", "exits", "works"], ended.__setitem__, workers=2)
    assert ended == {
        "raises": "ValueError: field=value: why",
        "dies": "its process died, exit code -9",
        "exits": "SystemExit: 3",
        "works": "",
    }


def test_nothing_starts_after_the_time_is_up(tmp_path):
    ended = []
    for_each(partial(note, tmp_path), "abc", lambda *end: ended.append(end), seconds=1e-9)
    assert ended == [] and notes(tmp_path) == []
    for_each(
        partial(note, tmp_path), "abc", lambda *end: ended.append(end), seconds=0.05
    )  # what has started ends
    assert ended == [("a", "")] and notes(tmp_path) == [["a", "1"]]


def test_interrupt_ends_the_processes_and_lets_them_tidy_up(tmp_path):
    def interrupt(item, error):
        while not (tmp_path / "started-long").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for_each(partial(wait_long, tmp_path), ["long", "short", "never"], interrupt, workers=2)
    assert multiprocessing.active_children() == [] and time.monotonic() - start < 30
    assert set(os.listdir(tmp_path)) == {
        "started-long",
        "started-short",
        "tidied-long",
        "tidied-short",
    }


def ask_twice(folder):
    """Interrupt work that ends only when it is killed, then again."""
    processes.get_context = multiprocessing.get_context
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of the server has none
    threading.Thread(target=interrupt_this, args=(folder,)).start()
    try:
        for_each(partial(stubborn, folder), ["a", "b"], lambda *end: None, workers=2)
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
    if not multiprocessing.active_children():
        (folder / "nobody-left").touch()


def interrupt_this(folder):
    for signs in (("started-a", "started-b"), ("asked-a", "asked-b")):
        while not all((folder / sign).exists() for sign in signs):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)


def stubborn(folder, item):
    (folder / f"started-{item}").touch()
    start = time.monotonic()
    while time.monotonic() - start < 120:
        try:
            time.sleep(1)
        except KeyboardInterrupt:
            (folder / f"asked-{item}").touch()


def test_second_interrupt_kills(tmp_path):
    process = FORKSERVER.Process(target=ask_twice, args=(tmp_path,))
    process.start()
    process.join(100)
    assert process.exitcode == 0 and {"interrupted", "nobody-left"} <= set(os.listdir(tmp_path))


def go_on(folder):
    """Start work of a minute, and be killed."""
    processes.get_context = multiprocessing.get_context
    threading.Thread(target=kill_once_started, args=(folder,)).start()
    for_each(partial(note_and_wait, folder), ["a", "b"], lambda *end: None, workers=2)


def kill_once_started(folder):
    while len(list(folder.glob("pid-*"))) < 2:
        time.sleep(0.01)
    kill_self()


def note_and_wait(folder, item):
    (folder / f"pid-{os.getpid()}").touch()
    while True:  # works, and hears nothing
        with suppress(BaseException):
            time.sleep(60)


def test_processes_end_with_one_that_is_killed(tmp_path):
    assert killed(go_on, tmp_path)
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.iterdir()]
    give_up = time.monotonic() + 10
    while any(map(is_there, pids)) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert len(pids) == 2 and not any(map(is_there, pids))


def is_there(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


def hears(folder, item):
    (folder / item).write_text(str(STARTED_WITH))


def test_process_that_still_imports_hears_no_interrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(
        processes, "get_context", multiprocessing.get_context
    )  # spawned, as they are outside of the tests
    before = signal.getsignal(signal.SIGINT)
    for_each(partial(hears, tmp_path), ["a"], lambda item, error: None)
    assert (tmp_path / "a").read_text() == str(signal.SIG_IGN) and signal.getsignal(
        signal.SIGINT
    ) is before


@pytest.mark.parametrize("item", ["raises", "works"])
def test_process_that_nobody_listens_to_ends_quietly(item):
    answer, speak = FORKSERVER.Pipe(duplex=False)
    answer.close()
    process = FORKSERVER.Process(target=processes._work, args=(speak, go_wrong, item, 1))
    process.start()
    process.join()
    assert process.exitcode == 0  # 1 after a traceback


def count_threads(folder, item):
    (folder / item).write_text(str(torch.get_num_threads()))


@pytest.mark.parametrize("here, workers, there", [(4, 2, "2"), (3, 1, "3"), (1, 2, "1")])
def test_processes_share_the_threads(tmp_path, monkeypatch, here, workers, there):
    monkeypatch.setattr(torch, "get_num_threads", lambda: here)
    for_each(partial(count_threads, tmp_path), "ab", lambda *end: None, workers=workers)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": there, "b": there}
