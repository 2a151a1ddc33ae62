"""A command that a SIGTERM meets in one exact moment: `python -m tests.launch.windows WINDOW MODULE ARGS…`.

It is `python -m MODULE ARGS…`, and sends the signal to itself when it gets there, so that no clock decides.
When it becomes another process, that one runs in here as well.
"""

from __future__ import annotations

import importlib.abc
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

LAUNCHER = "sancus.cli.local_ranks"


def strike() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class StrikeAtImport(importlib.abc.MetaPathFinder):
    """The signal comes while a module is looked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == self._name:
            self._name = ""
            strike()
        return None


def strike_before(owner: object, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """The signal comes right before a function is called, where `when` says so of its arguments."""
    real = getattr(owner, name)

    def struck(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            strike()
        return real(*args, **kwargs)

    setattr(owner, name, struck)


def strike_after_fork(place: int) -> None:
    """The signal comes to a process that has just forked for the time `place`, counted from 0."""
    real, forks = os.fork, 0

    def fork() -> int:
        nonlocal forks
        child = real()
        if child and forks == place:
            strike()
        forks += 1
        return child

    os.fork = fork


def open_window(window: str, module: str) -> None:
    """Prepare this process for its signal, if the window is one of `module`."""
    kind, _, detail = window.partition(":")
    launching = module == LAUNCHER
    if kind == "fork":
        strike_after_fork(int(detail))
    elif kind == "child":
        strike_before(signal, "set_wakeup_fd", lambda number: number == -1)
    elif kind == "exec":
        strike_before(os, "execv")
    elif kind == "shards":
        from sancus.shards import cache

        strike_before(cache, "build_shards")
    elif (kind == "launcher" and launching) or (kind == "command" and not launching):
        sys.meta_path.insert(0, StrikeAtImport(detail))


def main() -> None:
    window, module, *args = sys.argv[1:]
    real = os.execv

    def execv(program: str, words: Sequence[str]) -> NoReturn:
        python, flag, *rest = words
        real(program, [python, flag, "tests.launch.windows", window, *rest])

    os.execv = execv
    open_window(window, module)
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
