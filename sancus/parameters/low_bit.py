"""Parameter codecs `int8`, `int4`, `int2`, `int1`: few bits a value, with error feedback.

What the codes of a call left out is added to the tensors of the next, so that it is late, not lost (1-bit
SGD, Seide et al. 2014; Karimireddy et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from sancus.comm.group import Group
from sancus.parameters.base import Shapes
from sancus.parameters.codes import FewBits
from sancus.parameters.differences import Course, Of
from sancus.parameters.sum_by_codes import COLLECTIVES, Part, sum_by_codes, sum_bytes

RESIDUAL = "residual"


class LowBit:
    """All tensors as one vector, in rows of values that share a zero point and a scale."""

    lossless = False
    bits: ClassVar[int]

    def __init__(self, row: int = 64, of: Of = "gradients") -> None:
        """`row`: how many values share a zero point and a scale; `of`: what is coded."""
        if row < 8:
            raise ValueError(f"row={row} must be at least 8")
        self._code = FewBits(self.bits, row)
        self._course = Course(of)
        self._residual: torch.Tensor | None = None  # [k]: what this rank's codes left out so far

    def sum(self, tensors: Sequence[torch.Tensor], group: Group, seed: int) -> list[torch.Tensor]:
        """The sum of what is decoded, slice after slice."""
        if group.size == 1:
            return list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in self._course.before(tensors)])
        if self._residual is not None:
            flat += self._residual
        (total,) = sum_by_codes([Part(flat, self._code)], group, seed)
        self._residual = total.left_out
        parts = total.sum.split([tensor.numel() for tensor in tensors])
        return self._course.after([part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])

    def wire_bytes(self, shapes: Shapes, ranks: int, itemsize: int) -> int:
        """`bits` a value, and 8 bytes a row, with one or two bits 4; twice."""
        values = sum(math.prod(shape) for shape in shapes)
        return sum_bytes([(values, self._code)], ranks, itemsize)

    def collectives(self, shapes: Shapes) -> int:
        """Slices, and their sums."""
        return COLLECTIVES

    def state(self) -> dict[str, torch.Tensor]:
        """What was left out."""
        return {} if self._residual is None else {RESIDUAL: self._residual} | self._course.state()

    def restore(self, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        """Add it to the next tensors."""
        self._course.restore(state, device)
        self._residual = state[RESIDUAL].to(device) if RESIDUAL in state else None


class Int8(LowBit):
    """256 levels a value, error feedback."""

    bits = 8


class Int4(LowBit):
    """16 levels a value, error feedback."""

    bits = 4


class Int2(LowBit):
    """4 levels a value, error feedback."""

    bits = 2


class Int1(LowBit):
    """2 levels a value, error feedback."""

    bits = 1
