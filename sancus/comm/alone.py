"""The transport of a single process: there is nobody to talk to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sancus.comm.transport import DONE, Transfer, Transport


class Alone(Transport):
    """One process; every collective is the identity."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, timeout=0.0)

    def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Transfer:
        return DONE

    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Transfer:
        raise ValueError("a process alone has nobody to send to")

    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Transfer:
        raise ValueError("a process alone has nobody to receive from")

    def all_to_all(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        *,
        background: bool,
    ) -> Transfer:
        return DONE

    def all_gather(self, tensor: torch.Tensor, gathered: torch.Tensor) -> Transfer:
        gathered[0] = tensor
        return DONE

    def split(self, members: Sequence[int]) -> Transport | None:
        return Alone() if members else None

    def progress(self) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """Nothing to leave."""

    def abort(self) -> None:
        """Nobody to tell."""
