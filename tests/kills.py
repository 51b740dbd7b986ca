"""Processes that are killed at a chosen moment. They start from a server that has already imported the package, so each takes no time."""

import multiprocessing
import os
import signal

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["attnid.training.experiments"])


def kill_self(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def killed(function, *arguments):
    """Call the function in a process of its own; whether that process was killed, as against having ended."""
    process = FORKSERVER.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL
