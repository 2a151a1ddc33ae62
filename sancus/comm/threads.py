"""Ranks as threads of one process: a transport in memory, for replays, and for tests without a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sancus.comm.errors import CommError
from sancus.comm.group import Group
from sancus.comm.transport import DONE, Transfer, Transport

TIMEOUT = 800.0  # seconds, for what hangs; a busy machine may take its time


class Board:
    """Where ranks lay down what they give, round after round, and wait for the others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._place = [0] * size
        self._gone: set[int] = set()

    def exchange(self, rank: int, given: Any) -> list[Any]:
        """What every rank gave in this round; a rank that has left is an error of those who wait for it."""
        with self._changed:
            number = self._place[rank]
            self._place[rank] += 1
            self._rounds.pop(number - 2, None)  # everyone has read it
            row = self._rounds.setdefault(number, {})
            row[rank] = given
            self._changed.notify_all()
            in_time = self._changed.wait_for(lambda: len(row) == self._size or self._gone - set(row), TIMEOUT)
            if not in_time or len(row) < self._size:
                raise RuntimeError(f"rank {min(set(range(self._size)) - set(row))} did not come")
            return [row[other] for other in range(self._size)]

    def leave(self, rank: int) -> None:
        """A rank has returned, or failed."""
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()


class ThreadTransport(Transport):
    """One rank of a board; every collective happens when it starts."""

    def __init__(self, rank: int, size: int, board: Board) -> None:
        super().__init__(rank, size, TIMEOUT)
        self._board = board

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        given = self._board.exchange(self.rank, tensor.clone() if self.rank == owner else None)
        tensor.copy_(given[owner])
        return DONE

    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        raise NotImplementedError("no ring in one process")

    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        raise NotImplementedError("no ring in one process")

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        given = self._board.exchange(self.rank, send.clone().split(list(send_counts)))
        for part, sent in zip(receive.split(list(receive_counts)), given, strict=True):
            part.copy_(sent[self.rank])
        return DONE

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        gathered.copy_(torch.stack(self._board.exchange(self.rank, tensor.clone())))
        return DONE

    def split(self, members: Sequence[int]) -> Transport | None:
        raise NotImplementedError("one group in one process")

    def progress(self) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """Nothing to leave."""

    def abort(self) -> None:
        """Nothing to leave."""


def thread_group(rank: int, size: int, board: Board) -> Group:
    """One rank of a board, with headers, ledger and checks."""
    return Group(ThreadTransport(rank, size, board))


def run_threads(
    size: int,
    function: Callable[[Group], Any],
    make: Callable[[int, int, Board], Group] = thread_group,
) -> list[Any]:
    """`function(group)` on every rank; its result, or the exception that it raised, by rank."""
    board = Board(size)
    outcomes: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            outcomes[rank] = function(make(rank, size, board))
        except Exception as error:
            outcomes[rank] = error
        finally:
            board.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def results(outcomes: list[Any]) -> list[Any]:
    """The same, where no rank may fail; a rank that only lost another is not the one to hear of."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for outcome in sorted(failed, key=lambda error: isinstance(error, CommError)):
        raise outcome
    return outcomes
