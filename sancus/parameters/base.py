"""The contract of a parameter codec: tensors of all replicas in, the same sums out on every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from sancus.comm.group import Group

Shapes = Sequence[Sequence[int]]


class ParameterCodec(Protocol):
    """Adds tensors up over a group of replicas, and remembers what its codes left out of earlier sums.

    Every replica gives tensors of the same shapes, in the same order, in every call; all get the same sums,
    bit for bit, whatever their machines: what they do not compute from the same bytes in the same order must
    not enter a sum. A NaN of any replica reaches the sums of all of them. A replica alone gets back
    what it gave. What was left out is part of the next call: sums over many calls lose nothing.
    """

    lossless: bool  # the sums are those of the tensors

    def sum(self, tensors: Sequence[torch.Tensor], group: Group, seed: int) -> list[torch.Tensor]:
        """The sums over the replicas; `seed` is the same on all of them, and another one in every call."""
        ...

    def wire_bytes(self, shapes: Shapes, ranks: int, itemsize: int) -> int:
        """What all of so many ranks together send in one call, without headers."""
        ...

    def collectives(self, shapes: Shapes) -> int:
        """How many collectives one call takes, where there are several ranks."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """All that this replica remembers, for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        """Go on from a `state`, before the first call."""
        ...
