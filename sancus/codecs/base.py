"""The contract of a codec."""

from __future__ import annotations

from typing import Protocol

import torch


class Codec(Protocol):
    """Encodes a payload `[rows, f]` row by row, into `[rows, w]` on the wire.

    What a row becomes does not depend on the other rows. `decode(encode(x))` has the shape and dtype of
    `x` and is unbiased.
    """

    def wire(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty tensor for what `encode` makes of a payload `[rows, columns]` of `dtype`."""
        ...

    def encode(self, payload: torch.Tensor) -> torch.Tensor:
        """What crosses the wire; may share memory with the payload."""
        ...

    def decode(self, wire: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """The payload as receivers see it; may share memory with `wire`."""
        ...
