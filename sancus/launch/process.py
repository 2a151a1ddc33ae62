"""Processes of ours: a fork, its name, and its end together with its parent (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from sancus.launch.exit_codes import EXIT_FAILED, EXIT_PEER
from sancus.launch.interrupt import Interrupted, block_signals, unblock_signals

WARM = "SANCUS_WARM"  # this process was forked by one that has imported what ranks need


def fork() -> int:
    """`os.fork` after a flush of stdout and stderr, so that no line in a buffer is printed twice.

    In the child signals stay blocked until it has handlers of its own (`sancus.launch.interrupt`): those of
    its parent would note them for a process that is not there.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    block_signals()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of OpenBLAS's idle threads: it knows forks
        child = os.fork()
    if child:
        unblock_signals()
    return child


def run_command(main: Callable[[], None], argv: Sequence[str]) -> NoReturn:
    """In a fork: `main`, a command line, with `argv`, as a process of its own would run it."""
    sys.argv = ["sancus", *argv]
    code = EXIT_FAILED
    try:
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else code
    finally:
        os._exit(code)


def fork_command(main: Callable[[], None], argv: Sequence[str]) -> int:
    """`main` with `argv` in a fork of this process, whose imports its ranks get too; the exit code.

    A signal that interrupts the wait goes on to the fork, which saves its work before this process ends.
    """
    parent = str(os.getpid())
    child = fork()
    if not child:
        follow_parent(parent)
        os.environ[WARM] = "1"
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        run_command(main, argv)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except Interrupted as signal_here:
        os.kill(child, signal_here.number)
        os.waitpid(child, 0)
        raise


def follow_parent(expected: str | None = None, number: int = signal.SIGKILL) -> None:
    """This process dies with its parent, however that ends (Linux); at once if that ended already."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if expected is not None and str(os.getppid()) != expected:
        os._exit(EXIT_PEER)


def name_process(name: str) -> None:
    """What `top` and `ps -o comm` call this process (Linux; 15 letters)."""
    pr_set_name = 15
    ctypes.CDLL(None).prctl(pr_set_name, name.encode()[:15], 0, 0, 0)
