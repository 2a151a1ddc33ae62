"""Many command lines in one go: reads cases as JSON on stdin, runs each in a fork, writes results as JSON.

The parent has imported what every command needs, without torch, so a fork answers in milliseconds and can
tell whether its command imported torch. Starting a process fails: these commands end before any rank starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from sancus.cli import app as cli
from sancus.runs import check


def main() -> None:
    assert check is not None and "torch" not in sys.modules
    real_exit = os._exit
    results = []
    for case in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            child = os.fork()
            if child == 0:
                try:
                    _run(case, folder)
                finally:
                    real_exit(99)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            read = {file: (folder / file).read_text(errors="replace") for file in ("out", "err", "torch")}
            results.append({"code": status} | read)
    json.dump(results, sys.stdout)


def _run(case: dict[str, Any], folder: Path) -> None:
    """In the fork: does not return."""
    real_exit = os._exit

    def leave(code: int) -> NoReturn:
        (folder / "torch").write_text(str("torch" in sys.modules))
        real_exit(code)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a process was started")

    for number, file in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / file, os.O_WRONLY | os.O_CREAT), number)
    os._exit = leave  # type: ignore[assignment]
    subprocess.Popen.__init__ = refuse  # type: ignore[method-assign]
    os.environ.update(case["env"])
    sys.modules.update(dict.fromkeys(case["missing"]))  # type: ignore[arg-type]
    sys.argv = ["sancus", *case["args"]]
    try:
        cli.main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    sys.stdout.flush()
    sys.stderr.flush()
    leave(code)


if __name__ == "__main__":
    main()
