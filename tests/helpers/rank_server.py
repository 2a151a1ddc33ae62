"""Forks ranks of gloo and commands of `sancus`: torch is imported once, not once a rank or a command.

Reads one request a line as JSON on stdin, for `tests.helpers.processes`, and answers with the exit codes of
its forks. What still runs at a request's deadline is killed, and nothing of a command outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from sancus.cli import app
from sancus.cli.warm import warm_up
from sancus.launch.process import WARM, follow_parent, fork, run_command
from tests.helpers import rank_entry

POLL_SECONDS = 0.005


def main() -> None:
    follow_parent()
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        if "argv" in request:
            child = fork() or _be_command(request)
            codes = _codes([child], request["timeout"])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        else:
            codes = _codes([_fork(request, rank) for rank in range(request["ranks"])], request["timeout"])
        print(json.dumps(codes), flush=True)


def _fork(request: dict[str, Any], rank: int) -> int:
    child = os.fork()
    if not child:
        _be(request, rank)
    return child


def _be(request: dict[str, Any], rank: int) -> NoReturn:
    """In the fork: be that rank until its end."""
    try:
        output = os.open(Path(request["folder"]) / f"output-{rank}", os.O_WRONLY | os.O_CREAT)
        _settle(request["env"] | {"RANK": str(rank), "WORLD_SIZE": str(request["ranks"])}, output, output)
        rank_entry.work(request["function"], Path(request["folder"]), "gloo", request["timeout"] / 2)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(1)


def _be_command(request: dict[str, Any]) -> NoReturn:
    """In the fork: be `sancus ARGV` until its end, as `python -m sancus ARGV` in that folder would be."""
    try:
        follow_parent()
        out, err = (os.open(request[name], os.O_WRONLY | os.O_CREAT) for name in ("out", "err"))
        _settle(request["env"] | {WARM: "1"}, out, err)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(request["cwd"])
        sys.path[:1] = [request["cwd"], *request["env"]["PYTHONPATH"].split(os.pathsep)]
    except BaseException:
        os._exit(1)
    run_command(app.main, request["argv"])


def _settle(env: dict[str, str], out: int, err: int) -> None:
    """A session, an environment and streams of its own."""
    os.setsid()
    os.environ.clear()
    os.environ |= env
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)


def _codes(children: list[int], timeout: float) -> list[int | str]:
    deadline = time.monotonic() + timeout
    codes: dict[int, int | str] = {}
    while len(codes) < len(children):
        for child in set(children) - set(codes):
            late = time.monotonic() > deadline
            if late:
                os.killpg(child, signal.SIGKILL)
            ended, status = os.waitpid(child, 0 if late else os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                codes[child] = f"killed after {timeout:g} s" if late else code
        time.sleep(POLL_SECONDS)
    return [codes[child] for child in children]


if __name__ == "__main__":
    main()
