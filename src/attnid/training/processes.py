"""Work spread over processes: one for each item, a few at a time."""

import math
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process

import torch


def for_each(function, items, ended, *, workers=1, seconds=None):
    """Call function(item) for items in order, each in a process of its own, `workers` at a time,
    which share this one's threads.

    ended(item, error) is called as each ends, error being "" or what went wrong, the death of the
    process included; the others go on. After `seconds` no further item starts. An interrupt
    interrupts the processes and waits until they have ended; a second one kills them. If this
    process is killed, they end by themselves.
    """
    waiting, running = list(items), {}
    until = math.inf if seconds is None else time.monotonic() + seconds
    threads = max(1, torch.get_num_threads() // workers)
    may_start = lambda: waiting and len(running) < workers and time.monotonic() < until
    try:
        while running or may_start():
            while may_start():
                item = waiting.pop(0)
                answer, process = _start(function, item, threads)
                running[answer] = item, process
            for answer in connection.wait(running):
                item, process = running.pop(answer)
                ended(item, _error(answer, process))
    finally:
        _end([process for _, process in running.values()])


def _start(function, item, threads):
    context = get_context("spawn")
    answer, speak = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(speak, function, item, threads))
    # Ctrl-C reaches every process, also one that is still importing
    hears = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, hears)
    speak.close()  # the process holds the only other end, so that its death is heard
    return answer, process


def _end(processes):
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        raise


def _work(speak, function, item, threads):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process interrupts the others
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        function(item)
        error = ""
    except BaseException as failure:
        error = f"{type(failure).__name__}: {failure}"
    with suppress(BrokenPipeError):  # whoever asked may have ended
        speak.send(error)


def _end_with_parent():
    connection.wait([parent_process().sentinel])
    os._exit(1)


def _error(answer, process):
    try:
        error = answer.recv()
    except EOFError:
        error = None
    process.join()
    answer.close()
    return f"its process died, exit code {process.exitcode}" if error is None else error
