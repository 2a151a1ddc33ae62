"""Which rank holds the others up: from the statuses of all ranks to suspects, and a line that names them.

Suspects are looked for in this order: a rank that failed; one whose process is dead; one that does not run
(stopped, swapped out, or its host is gone); one that has not come to the collective where the others wait;
one that computes while they wait. A rank that only lost its connection to the others is never a suspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sancus.watch.board import Board
from sancus.watch.proc import STATES, state_of
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
        _failures(others)
        or _deaths(others, me, silence)
        or _not_running(others, me, silence)
        or (_behind(others, me, silence) if waiting else [])
    )


def _failures(others: Mapping[int, Status]) -> list[Suspect]:
    statuses = [status for status in others.values() if status.ending == "error"]
    return [Suspect(status.rank, True, f"failed: {status.error}") for status in statuses]


def _deaths(others: Mapping[int, Status], me: Status, silence: Mapping[int, float]) -> list[Suspect]:
    suspects = []
    for rank, status in others.items():
        if status.host == me.host and status.ending == "" and state_of(status) == "Z":
            suspects.append(
                Suspect(rank, True, f"has ended without a word, killed; it was last {status.doing()}")
            )
    return suspects


def _not_running(others: Mapping[int, Status], me: Status, silence: Mapping[int, float]) -> list[Suspect]:
    suspects = []
    for rank, status in others.items():
        if silence[rank] > SILENT_SECONDS and status.ending == "":
            state = state_of(status) if status.host == me.host else None
            how = STATES.get(state or "", "it is stopped, swapped out or cut off")
            last_sign = f"last seen {silence[rank]:.0f} s ago on {status.host}, {status.doing()}"
            suspects.append(Suspect(rank, False, f"does not run ({how}): {last_sign}"))
    return suspects


def _behind(others: Mapping[int, Status], me: Status, silence: Mapping[int, float]) -> list[Suspect]:
    """Ranks that have not started what `me` waits for; else those that compute meanwhile."""
    awaited = me.awaited or me.number
    late = [status for status in others.values() if status.number < awaited and status.ending == ""]
    computing = [status for status in others.values() if status.awaited is None and status.ending == ""]
    suspects = []
    for status in late or computing:
        seconds = status.posted - status.since + silence[status.rank]
        suspects.append(Suspect(status.rank, False, f"has been {status.doing()} for {seconds:.0f} s"))
    return suspects


def describe(suspects: list[Suspect]) -> str:
    """`rank 2 does not run (…)`, and how many others there are."""
    more = f" (and {len(suspects) - 1} more: {_ranks(suspects[1:])})" if len(suspects) > 1 else ""
    return f"rank {suspects[0].rank} {suspects[0].why}{more}"


def _ranks(suspects: list[Suspect]) -> str:
    return ", ".join(f"rank {suspect.rank}" for suspect in suspects)
