"""Forks ranks of gloo for `tests.helpers.processes.run_ranks`: torch is imported once, not once a rank.

Reads one request a line as JSON on stdin, and answers with the exit codes by rank. What still runs at a
request's deadline is killed, with its whole session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from sancus.cli.warm import warm_up
from sancus.launch.process import follow_parent
from tests.helpers import rank_entry

POLL_SECONDS = 0.005


def main() -> None:
    follow_parent()
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        children = [_fork(request, rank) for rank in range(request["ranks"])]
        print(json.dumps(_codes(children, request["timeout"])), flush=True)


def _fork(request: dict[str, Any], rank: int) -> int:
    child = os.fork()
    if not child:
        _be(request, rank)
    return child


def _be(request: dict[str, Any], rank: int) -> NoReturn:
    """In the fork: be that rank until its end."""
    try:
        os.setsid()
        os.environ |= request["env"] | {"RANK": str(rank), "WORLD_SIZE": str(request["ranks"])}
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(Path(request["folder"]) / f"output-{rank}", os.O_WRONLY | os.O_CREAT)
        for number in (1, 2):
            os.dup2(output, number)
        rank_entry.work(request["function"], Path(request["folder"]), "gloo", request["timeout"] / 2)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(1)


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
