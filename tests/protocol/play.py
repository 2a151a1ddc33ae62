"""One play: the real code of all ranks, one rank at a time, in exactly the order that a script says.

Ranks are threads, of which one runs and the others stand still, each before the start of a transfer, before
the wait for one, or before a question that only fate can answer (has a signal come?). `moves` says what could
happen next, `make` lets it happen. Nothing else decides anything, so a play can be repeated move by move.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import xxhash

from sancus.comm.desk import Desk
from sancus.comm.group import Group
from sancus.comm.stopwatch import Stopwatch
from tests.protocol.network import LOST, Network, PaperTransport, Part

Kind = Literal["step", "fail", "arrive", "crash", "answer"]
Status = Literal["stands", "done", "error", "crashed"]


@dataclass(frozen=True, order=True)
class Move:
    """Something that can happen now."""

    kind: Kind
    rank: int
    answer: int = 0  # of fate
    number: int = 0  # of the transfer that arrives

    def __str__(self) -> str:
        what = {"arrive": f" {self.number}", "answer": f" {self.answer}"}.get(self.kind, "")
        return f"rank {self.rank}: {self.kind}{what}"


class Away(BaseException):
    """Ends the thread of a rank that is not needed any more, or that crashes."""


@dataclass
class Seat:
    """One rank of a play."""

    status: Status = "stands"
    before: tuple[str, Part | None] = ("", None)  # what it stands before: start, finish or question
    options: int = 0  # of the question
    result: Any = None
    turn: Any = field(default_factory=allocate_lock)
    order: str | int = ""  # what it shall do when it goes on
    story: Any = field(default_factory=xxhash.xxh3_128)  # all that it did and saw
    moves: int = 0
    notes: list[Any] = field(default_factory=list)  # what the ranks' program reports
    memory: Callable[[], bytes] = bytes  # a digest of what it holds, and will use later


class Stage:
    """What a rank's program may use beside its group."""

    def __init__(self, play: Play, rank: int) -> None:
        self._play = play
        self._rank = rank

    def note(self, what: Any) -> None:
        """Something that the properties are about; part of the rank's story."""
        seat = self._play.seats[self._rank]
        seat.notes.append(what)
        seat.story.update(repr(what).encode())

    def ask(self, options: int) -> int:
        """A number below `options` that fate chooses."""
        return self._play.ask(self._rank, options)

    def open(self, memory: Callable[[], bytes]) -> None:
        """From here on the order of moves is explored; what came before has one order.

        `memory` digests what the rank holds: a rank that looked too early holds something else.
        """
        self._play.seats[self._rank].memory = memory
        self._play.opened.add(self._rank)


Program = Callable[[Group, Stage], Any]


class Play:
    """The threads of one play, and the network between them."""

    def __init__(self, program: Program, size: int, *, eager: bool) -> None:
        self.network = Network(size, eager)
        self.seats = [Seat() for _ in range(size)]
        self.opened: set[int] = set()
        self._program = program
        self._back = allocate_lock()
        self._back.acquire()
        self._threads = []
        for rank, seat in enumerate(self.seats):
            seat.turn.acquire()
            thread = threading.Thread(target=self._run, args=(rank,), daemon=True)
            self._threads.append(thread)
            thread.start()
            self._let(rank)

    # What ranks call; each returns when the rank is let go on.

    def before_start(self, rank: int, part: Part) -> None:
        """See `Pauses`."""
        self._tell(rank, "start", part, part.out)
        self._stand(rank, ("start", part))

    def before_finish(self, rank: int, part: Part) -> None:
        """See `Pauses`."""
        if self._stand(rank, ("finish", part)) == "fail":
            self._tell(rank, "failed", part, [])
            raise RuntimeError(LOST)
        if not part.arrived:
            self.network.pour(rank, part)
        self._tell(rank, "finished", part, part.into)

    def ask(self, rank: int, options: int) -> int:
        """See `Stage`."""
        self.seats[rank].options = options
        answer = self._stand(rank, ("question", None))
        assert isinstance(answer, int)
        self.seats[rank].story.update(b"answer %d" % answer)
        return answer

    # What the explorer calls.

    def moves(self, *, crashes: bool) -> list[Move]:
        """Everything that can happen next; where that is one rank's affair alone, only that.

        To start a transfer, and to be told something by fate, depends on nobody and can prevent nothing: it
        is done at once, as its order among other ranks' moves makes no difference (a persistent set).
        """
        crashes = crashes and not self.network.dead and len(self.opened) == len(self.seats)
        standing = [rank for rank, seat in enumerate(self.seats) if seat.status == "stands"]
        for rank in standing:
            before, _ = self.seats[rank].before
            crash = [Move("crash", rank)] * crashes
            if before == "start":
                return [Move("step", rank), *crash]
            if before == "question":
                options = self.seats[rank].options
                return [Move("answer", rank, answer) for answer in range(options)] + crash
        moves = []
        for rank in standing:
            _, part = self.seats[rank].before
            assert part is not None
            if self.network.complete(rank, part):
                moves.append(Move("step", rank))
            if self.network.hopeless(part):
                moves.append(Move("fail", rank))
            moves += [Move("crash", rank)] * crashes
        for (_, number, rank), part in self.network.under_way():
            if self.seats[rank].status == "stands" and not part.arrived and self.network.arrives(part):
                moves.append(Move("arrive", rank, number=number))
        return moves if len(self.opened) == len(self.seats) else moves[:1]

    def make(self, move: Move) -> None:
        """Let it happen."""
        seat = self.seats[move.rank]
        seat.moves += 1
        if move.kind == "arrive":
            place = ("background",), move.number, move.rank
            self.network.pour(move.rank, self.network.parts[place])
        elif move.kind == "crash":
            seat.status = "crashed"
            self.network.dead.add(move.rank)
            self.network.gone.add(move.rank)
        else:
            seat.order = move.answer if move.kind == "answer" else move.kind
            self._let(move.rank)

    def state(self) -> bytes:
        """What the future depends on: every rank's story and place, and what is on its way."""
        everything = xxhash.xxh3_128()
        for seat in self.seats:
            everything.update(f"{seat.status} {seat.before[0]} {seat.story.hexdigest()}".encode())
            everything.update(seat.memory())
        for (_, number, rank), part in self.network.under_way():
            everything.update(f"{number} {rank} {part.arrived}".encode())
        return everything.digest()

    @property
    def over(self) -> bool:
        """Whether every rank has ended."""
        return all(seat.status != "stands" for seat in self.seats)

    def end(self) -> None:
        """Nobody is needed any more."""
        for rank, seat in enumerate(self.seats):
            if seat.before[0]:
                seat.order = "away"
                self._let(rank)
        for thread in self._threads:
            thread.join()

    def _run(self, rank: int) -> None:
        seat = self.seats[rank]
        seat.turn.acquire()
        transport = PaperTransport(rank, self.network, self)
        group = Group(transport, desk=Desk(stopwatch=Stopwatch(lambda: 0.0)))
        try:
            seat.result = self._program(group, Stage(self, rank))
            seat.status = "done"
        except Away:
            pass
        except Exception as error:
            seat.result, seat.status = error, "error"
            self.network.dead.add(rank)
        seat.before = ("", None)
        self.network.gone.add(rank)
        self._back.release()

    def _let(self, rank: int) -> None:
        """Let a rank go on until it stands again."""
        self.seats[rank].turn.release()
        self._back.acquire()

    def _stand(self, rank: int, before: tuple[str, Part | None]) -> str | int:
        seat = self.seats[rank]
        seat.before = before
        if seat.order != "away":
            self._back.release()
            seat.turn.acquire()
        if seat.order == "away":
            raise Away
        return seat.order

    def _tell(self, rank: int, what: str, part: Part, content: list[torch.Tensor]) -> None:
        story = self.seats[rank].story
        story.update(f"{what} {part.way} {part.number} ".encode())
        for piece in content:
            story.update(piece.numpy().tobytes() + b".")
