"""What a communication library must do for a set of processes: start transfers of raw bytes.

Implemented over gloo and NCCL (`torch_dist`), MPI (`mpi`) and for one process (`alone`). A transport starts
what it is asked for and returns a `Transfer` at once; the tensors belong to it until that is finished. It
knows ranks only by their place among its members, 0 to p − 1, and nothing of what bytes mean: headers,
checks and the ledger are the business of `sancus.comm.group.Group`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from sancus.comm.notes import Notes


@dataclass(frozen=True)
class Transfer:
    """What a library has under way."""

    finish: Callable[[], None]  # block until it ends, within the timeout; a RuntimeError if it fails
    ended: Callable[[], float | None]  # the moment at which it was seen to have ended (perf_counter)


DONE = Transfer(lambda: None, lambda: None)  # of a transport where everything happens when it starts


class Transport(abc.ABC):
    """A library's connections between the members of one set of processes."""

    leaves_together: ClassVar[bool] = False  # whether `close` itself waits for all members
    in_order = False  # whether transfers of a stream run in the order of their start, as on a GPU

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        """`rank` is this process's place among `size` members; no wait is longer than `timeout` seconds."""
        self.rank = rank
        self.size = size
        self.timeout = timeout

    @property
    def device(self) -> torch.device:
        """Where tensors must be to be moved."""
        return torch.device("cpu")

    @abc.abstractmethod
    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        """Start a broadcast; in the background nothing else waits behind it."""

    @abc.abstractmethod
    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        """Start to send to one member; messages of one tag arrive in the order in which they are sent."""

    @abc.abstractmethod
    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        """Start to receive from one member."""

    def pass_on(
        self, receive: torch.Tensor | None, sender: int, send: torch.Tensor | None, receiver: int
    ) -> Transfer:
        """Start to receive and to send at once, where transfers are `in_order`: together, so none waits."""
        raise NotImplementedError("only of transports whose transfers are in order")

    @abc.abstractmethod
    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        """Start a variable all-to-all of rows."""

    @abc.abstractmethod
    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        """Start an all-gather of equal shapes into `gathered [p, …]`."""

    @abc.abstractmethod
    def split(self, members: Sequence[int]) -> Transport | None:
        """Connections of their own between some members, in ascending order; None for a process outside.

        All members of this transport call it, with the same arguments in the same order.
        """

    @abc.abstractmethod
    def progress(self) -> None:
        """Help background transfers along, where the library does not do so by itself."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave in good order: all members have said that they are done."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Leave at once because this process failed; the others must not wait for it."""

    def notes(self) -> Notes | None:
        """Where processes can leave notes for each other outside all transfers, if the library has that."""
        return None
