"""Who holds the others up: from the statuses of all ranks to the ones at fault, and a line that says so.

In this order: a rank that failed, a rank that has ended, one that does not run any more (stopped, swapped
out, or its host is gone), one that has not come to the collective where the others wait, one that computes
while they do. A rank that only lost the others is never at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sancus.watch.board import Board
from sancus.watch.process import STOPPED, state_of
from sancus.watch.status import Status

SILENT_SECONDS = 2.5  # without a beat, of which there is one a second


@dataclass(frozen=True)
class Suspect:
    """A rank that others wait for."""

    rank: int
    certain: bool  # it failed or ended: more waiting tells nothing new
    why: str


def find_suspects(board: Board, me: Status, waiting: bool = True) -> list[Suspect]:
    """The ranks that hold `me` up, worst reason first; none where nothing points at anyone."""
    others = {rank: status for rank, status in board.read().items() if rank != me.rank}
    silence = {rank: board.silence(status, me.host) for rank, status in others.items()}
    return (
        _failed(others)
        or _ended(others, me, silence)
        or _not_running(others, me, silence)
        or (_behind(others, me, silence) if waiting else [])
    )


def _failed(others: Mapping[int, Status]) -> list[Suspect]:
    failed = [status for status in others.values() if status.ending == "error"]
    return [Suspect(status.rank, True, f"failed: {status.error}") for status in failed]


def _ended(others: Mapping[int, Status], me: Status, silence: Mapping[int, float]) -> list[Suspect]:
    found = []
    for rank, status in others.items():
        if status.host == me.host and status.ending == "" and state_of(status) == "Z":
            found.append(
                Suspect(rank, True, f"has ended without a word, killed; it was last {status.doing()}")
            )
    return found


def _not_running(others: Mapping[int, Status], me: Status, silence: Mapping[int, float]) -> list[Suspect]:
    found = []
    for rank, status in others.items():
        if silence[rank] > SILENT_SECONDS and status.ending == "":
            state = state_of(status) if status.host == me.host else None
            how = STOPPED.get(state or "", "it is stopped, swapped out or cut off")
            seen = f"last seen {silence[rank]:.0f} s ago on {status.host}, {status.doing()}"
            found.append(Suspect(rank, False, f"does not run ({how}): {seen}"))
    return found


def _behind(others: Mapping[int, Status], me: Status, silence: Mapping[int, float]) -> list[Suspect]:
    """Ranks that have not started what `me` waits for; else those that compute meanwhile."""
    awaited = me.awaited or me.number
    late = [status for status in others.values() if status.number < awaited and status.ending == ""]
    computing = [status for status in others.values() if status.awaited is None and status.ending == ""]
    found = []
    for status in late or computing:
        seconds = status.posted - status.since + silence[status.rank]
        found.append(Suspect(status.rank, False, f"has been {status.doing()} for {seconds:.0f} s"))
    return found


def describe(suspects: list[Suspect]) -> str:
    """`rank 2 does not run (…)`, and how many others there are."""
    more = f" (and {len(suspects) - 1} more: {_ranks(suspects[1:])})" if len(suspects) > 1 else ""
    return f"rank {suspects[0].rank} {suspects[0].why}{more}"


def _ranks(suspects: list[Suspect]) -> str:
    return ", ".join(f"rank {suspect.rank}" for suspect in suspects)
