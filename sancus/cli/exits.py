"""How a command ends: what it says last, with which exit code, and how fast a rank leaves the others."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

from sancus.errors import UserError
from sancus.launch.exit_codes import EXIT_PEER, EXIT_SAVED
from sancus.launch.interrupt import heed_signals
from sancus.launch.world import World, detect
from sancus.runs.logs import note_end
from sancus.watch.proc import children_of

INTERRUPTED = "interrupted"
HOLD_BACK_SECONDS = 2.0


def leave(code: int, line: str = "", details: str = "") -> NoReturn:
    """End this process with a last line. A rank ends at once: it waits for no collective of the others."""
    world = world_here()
    if code not in EXIT_SAVED:
        heed_signals()  # nothing is left to be saved: a launcher that ends this process ends it now
    note_end(f"{details}{line or f'ended with exit code {code}'}", failed=True)
    silent = not line
    if world is not None and code in EXIT_SAVED:
        silent = world.rank > 0 or line == INTERRUPTED
    if not silent and may_speak(world, lost_peers=code == EXIT_PEER):
        named = world is not None and (world.rank > 0 or details) and not line.startswith("rank ")
        who = f"rank {world.rank}: " if world is not None and named else ""
        sys.stderr.write(f"{details}sancus: {who}{line}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if world is not None:
        os._exit(code)
    sys.exit(code)


def finish_rank() -> None:
    """A rank that is done leaves at once: gloo's threads can abort a process while Python takes it apart."""
    world = world_here()
    if world is not None and world.launcher in ("local", "torchrun"):
        sys.stderr.flush()
        os._exit(0)


def world_here() -> World | None:
    """The world of this process; None where it has none, or one that is announced wrongly."""
    try:
        return detect(os.environ)
    except UserError:
        return None


def may_speak(world: World | None, *, lost_peers: bool) -> bool:
    """Whether this rank reports its failure; waits where another rank is likely to report it better.

    Most mistakes are met by all ranks at once: the first rank of each host speaks at once, and its end
    makes most launchers end the others, so that nothing is said twice. mpiexec does not, if it ended
    before it joined MPI: then the others stay silent. A rank that only lost its peers lets the one that
    failed end first, so that the launcher names that one.
    """
    if world is None or (world.local_rank == 0 and not lost_peers):
        return True
    time.sleep(HOLD_BACK_SECONDS)
    return world.launcher != "mpiexec" or not _one_has_left(world)


def _one_has_left(world: World) -> bool:
    """Whether a rank of this host ended before this one did (Linux; no where it cannot be known)."""
    siblings = children_of(os.getppid())
    return os.getpid() in siblings and len(siblings) < world.local_size
