"""`python -m sancus.programs.launcher FOLDER PARENT RANKS BACKEND RESTARTS`: starts the ranks of a program.

A clean process beside the program (`own_ranks.py`), which imports what ranks need, and forks them.
"""

from __future__ import annotations

import os
import signal
import sys

from sancus.launch.interrupt import block_signals


def main() -> None:
    """Launch the ranks, and end with the program that wants them: SIGTERM then lets them save their work."""
    block_signals()
    folder, parent, ranks, backend, restarts = sys.argv[1:]
    from sancus.launch.process import follow_parent

    follow_parent(parent, signal.SIGTERM)
    from sancus.cli.warm import warm_up
    from sancus.launch.arrivals import Arrivals
    from sancus.launch.local import run
    from sancus.programs import rank

    arrivals = Arrivals()
    if backend != "mpi":
        warm_up()
    code = run(rank.main, [rank.VERB, folder], int(ranks), backend, int(restarts), arrivals, rank.__name__)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
