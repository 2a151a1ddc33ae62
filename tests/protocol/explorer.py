"""The explorer: every order in which things can happen, once.

Depth first, by repeating plays: a play follows its script to the last branch and goes on from there, as long
as it comes to states that were never seen. States are compared by what every rank did and saw, so two orders
that make no difference to anybody are one. Nothing is drawn: the same program gives the same counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.protocol.play import Move, Play, Program, Seat

Judge = Callable[[list[Seat]], str | None]


class ViolationError(AssertionError):
    """A play that a property does not hold for, with the moves that lead to it."""

    def __init__(self, what: str, script: list[Move], seats: list[Seat]) -> None:
        told = [f"  rank {rank}: {seat.status} {seat.result!r}" for rank, seat in enumerate(seats)]
        super().__init__("\n".join([what, *told, "after:", *(f"  {move}" for move in script)]))
        self.what = what


@dataclass
class Count:
    """What was explored."""

    states: int = 0
    moves: int = 0  # from one state to another
    plays: int = 0  # of the real code, each from the start
    ends: int = 0  # states in which every rank has ended
    crashes: int = 0  # moves that are a crash
    deepest: int = 0  # moves of the longest play
    left: int = 0  # branches that were not followed any more
    outcomes: dict[str, int] = field(default_factory=dict)  # how the ranks ended -> states


def explore(
    program: Program, size: int, judge: Judge, *, eager: bool, crashes: bool, limit: int = 0
) -> Count:
    """Try everything; `judge` says what is wrong with an end. At most `limit` plays, where that is given."""
    count, seen = Count(), set[bytes]()
    scripts: list[list[Move]] = [[]]
    while scripts and not (limit and count.plays >= limit):
        script = scripts.pop()
        play = Play(program, size, eager=eager)
        count.plays += 1
        try:
            for move in script:
                play.make(move)
            while True:
                state = play.state()
                if state in seen:
                    break
                seen.add(state)
                moves = play.moves(crashes=crashes)
                count.moves += len(moves)
                count.crashes += sum(move.kind == "crash" for move in moves)
                if not moves:
                    _end(play, script, judge, count)
                    break
                scripts += [[*script, move] for move in reversed(moves[1:])]
                script.append(moves[0])
                play.make(moves[0])
        finally:
            play.end()
        count.deepest = max(count.deepest, len(script))
    count.states, count.left = len(seen), len(scripts)
    return count


def _end(play: Play, script: list[Move], judge: Judge, count: Count) -> None:
    if not play.over:
        stuck = [rank for rank, seat in enumerate(play.seats) if seat.status == "stands"]
        raise ViolationError(f"deadlock: ranks {stuck} wait for ever", script, play.seats)
    wrong = judge(play.seats)
    if wrong is not None:
        raise ViolationError(wrong, script, play.seats)
    count.ends += 1
    outcome = " ".join(sorted(seat.status for seat in play.seats))
    count.outcomes[outcome] = count.outcomes.get(outcome, 0) + 1
