"""Local ranks: started, watched, ended together, and started again after a failure.

`sancus train --ranks N` becomes this process (`sancus.launch.spawn`). It has imported what every rank needs,
and forks the ranks: N ranks start in the time of one, and a restart costs next to nothing. It never computes,
so no thread of its own is lost in a fork. Ranks of MPI are mpiexec's, which is started and watched from here.
"""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Callable, Sequence

from sancus.launch.arrivals import Arrivals
from sancus.launch.attempt import Attempt, Start
from sancus.launch.exit_codes import EXIT_FAILED, EXIT_SAVED, EXIT_USER, exit_code
from sancus.launch.forked import ForkedRanks
from sancus.launch.meeting import meeting_folder
from sancus.launch.mpi import MpiRanks
from sancus.launch.space import is_full, no_space
from sancus.launch.world import GO_ON
from sancus.watch.board import FileNotes, Notes


def supervise(start: Callable[[int], Attempt], restarts: int, arrivals: Arrivals, notes: Notes) -> int:
    """Attempts until one ends well, or a mistake or a signal ends it all; the exit code.

    In `notes` is the command that goes on with what ranks have saved, if they saved anything.
    """
    ended = "no rank was started"
    for attempt in range(restarts + 1):
        if arrivals.received:
            break
        code = start(attempt).wait()
        if code in (0, *EXIT_SAVED):
            return code  # the ranks have saved their work, and the first one has said so
        ended = "all ranks were ended"
        if arrivals.received:
            break
        if code != EXIT_FAILED or attempt == restarts:
            return code
        sys.stderr.write(f"sancus: starting again, {attempt + 1} of {restarts}\n")
    number = arrivals.received[0]
    command = notes.get(GO_ON)
    how = "" if command is None else f"; go on with: {command.decode()}"
    sys.stderr.write(f"sancus: interrupted by {signal.Signals(number).name}; {ended}{how}\n")
    return exit_code(number)


def run(
    main: Callable[[], None],
    argv: Sequence[str],
    ranks: int,
    backend: str,
    restarts: int,
    arrivals: Arrivals,
    module: str = "sancus",
) -> int:
    """`sancus argv` as local ranks until its end; the exit code.

    `main` is what a forked rank runs, and `module` the same for `python -m`.
    """
    name = uuid.uuid4().hex
    try:
        with meeting_folder() as folder:

            def begin(attempt: int) -> Attempt:
                own = folder / str(attempt)
                own.mkdir()
                start = Start(main, argv, ranks, name, attempt, own, module, folder)
                return MpiRanks(start, arrivals) if backend == "mpi" else ForkedRanks(start, arrivals)

            return supervise(begin, restarts, arrivals, FileNotes(folder))
    except OSError as error:
        if not is_full(error):
            raise
        sys.stderr.write(f"sancus: {no_space(error)}\n")
        return EXIT_USER
