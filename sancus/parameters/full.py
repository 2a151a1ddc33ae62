"""Parameter codec `fp32`: values cross as they are, in the run's dtype, in one flat all-reduce."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from sancus.comm.group import Group
from sancus.parameters.base import Shapes


class FullPrecision:
    """Full precision: the exact sum (float64 under --dtype float64)."""

    lossless = True

    def sum(self, tensors: Sequence[torch.Tensor], group: Group, seed: int) -> list[torch.Tensor]:
        """Sums in the order of ranks; every rank sends `2 (p-1)/p` of the values."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        group.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def wire_bytes(self, shapes: Shapes, ranks: int, itemsize: int) -> int:
        """Every rank sends a slice to each other, then its sum to each other."""
        values = sum(math.prod(shape) for shape in shapes)
        return 2 * ranks * (ranks - 1) * -(-values // ranks) * itemsize

    def collectives(self, shapes: Shapes) -> int:
        """An all-to-all of slices, an all-gather of their sums."""
        return 2

    def state(self) -> dict[str, torch.Tensor]:
        """Nothing: nothing is left out."""
        return {}

    def restore(self, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        """Nothing to go on from."""
