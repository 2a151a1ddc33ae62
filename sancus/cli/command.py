"""A command line from its start to its end, whatever its verbs: mistakes, signals, ranks to be started."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from contextlib import nullcontext
from functools import partial

import cyclopts
from cyclopts import App

from sancus.cli.exits import INTERRUPTED, finish_rank, leave, world_here
from sancus.cli.flags import fill_flags
from sancus.comm.errors import CommError
from sancus.config.resolve import modern_arguments
from sancus.console.terminal import outlive_terminal
from sancus.errors import UserError
from sancus.launch.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PEER,
    EXIT_PIPE,
    EXIT_USER,
    exit_code,
)
from sancus.launch.interrupt import Interrupted, Stopped, early_signals, unblock_signals
from sancus.launch.space import is_full
from sancus.launch.spawn import RanksNeeded, spawn

LAUNCHER = "sancus.cli.local_ranks"  # the module that a command with several ranks becomes


def make_app(summary: str = "", version: str = "") -> App:
    """A command line without verbs yet; exceptions of a verb reach `run_verbs`."""
    return App(
        name="sancus",
        help=summary,
        version=version,
        config=fill_flags,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )


def run_verbs(app: App) -> None:
    """Do what `sys.argv` asks for: a user's mistake is one line and exit code 2.

    A rank that has nothing to save yet is ended by a signal at once, so that it cannot hang in a library.
    """
    outlive_terminal()
    with nullcontext() if world_here() else early_signals():
        _run_verbs(app)


def _run_verbs(app: App) -> None:
    try:
        unblock_signals()
        needed = _obey(app)
        if needed is not None:
            spawn(sys.argv[1:], needed, partial(run_verbs, app), LAUNCHER)
        sys.stdout.flush()
        finish_rank()
    except UserError as error:
        leave(EXIT_USER, str(error))
    except cyclopts.CycloptsError as error:
        leave(EXIT_USER, _mistyped(error))
    except CommError as error:
        leave(EXIT_PEER, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        leave(EXIT_PIPE)
    except Stopped as stop:
        leave(exit_code(stop.number), str(stop))
    except Interrupted as stop:
        leave(exit_code(stop.number), str(stop))
    except KeyboardInterrupt:
        leave(EXIT_INTERRUPTED, INTERRUPTED)
    except OSError as error:
        if is_full(error):
            leave(EXIT_USER, _full(error))
        leave(EXIT_FAILED, "failed with the error above", traceback.format_exc())
    except MemoryError as error:
        leave(EXIT_FAILED, f"out of memory: {error or 'no more can be had'}; see sancus estimate")
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, of a GPU
            leave(
                EXIT_USER,
                f"the GPU has too little memory: {_first_line(error)}; use more ranks: sancus estimate",
            )
        leave(EXIT_FAILED, "failed with the error above", traceback.format_exc())


def _obey(app: App) -> RanksNeeded | None:
    """Run the verb; the `RanksNeeded` that it raised where it must run as local ranks, else None."""
    try:
        app(modern_arguments(sys.argv[1:]), exit_on_error=False, print_error=False)
    except RanksNeeded as needed:
        return needed.with_traceback(None)  # what the verb has loaded is freed
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0]


def _full(error: OSError) -> str:
    """The line that tells a user where there is no space, as far as that is known."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; free space, or set TMPDIR to a folder that has some"


def _mistyped(error: cyclopts.CycloptsError) -> str:
    """The line that tells a user why the command line cannot be read."""
    if isinstance(error, cyclopts.UnusedCliTokensError):
        return f"too many arguments: {shlex.join(error.unused_tokens or [])}; see sancus train --help"
    return " ".join(str(error).split())
