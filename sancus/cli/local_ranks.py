"""`python -m sancus.cli.local_ranks RANKS BACKEND RESTARTS ARGV…`: the launcher of `sancus ARGV`.

`sancus.launch.spawn` turns a command that needs several ranks into this process.
"""

from __future__ import annotations

import os
import sys

from sancus.cli.app import main as command_line
from sancus.cli.warm import warm_up
from sancus.console.terminal import outlive_terminal
from sancus.launch.arrivals import Arrivals
from sancus.launch.local import run


def main() -> None:
    """Read the arguments that `sancus.launch.spawn` wrote, and launch the ranks."""
    outlive_terminal()
    arrivals = Arrivals()
    ranks, backend, restarts, *argv = sys.argv[1:]
    if backend != "mpi":
        warm_up()
    code = run(command_line, argv, int(ranks), backend, int(restarts), arrivals)
    sys.stderr.flush()
    os._exit(code)  # without taking Python apart, in which one more Ctrl-C would be deadly


if __name__ == "__main__":
    main()
