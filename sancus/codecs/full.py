"""Codec `fp32`: full precision."""

from __future__ import annotations

import torch

from sancus.codecs.base import Moment


class FullPrecision:
    """Values cross as they are, in the run's dtype (float32; float64 under `--dtype float64`)."""

    lossless = True

    def wire(
        self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, stage: float
    ) -> torch.Tensor:
        """An empty tensor with the payload's shape and dtype."""
        return torch.empty(rows, columns, dtype=dtype, device=device)

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        """The payload itself: nothing is encoded."""
        return payload

    def decode(
        self, wire: torch.Tensor, rows: int, columns: int, dtype: torch.dtype, stage: float
    ) -> torch.Tensor:
        """The wire itself."""
        assert wire.dtype == dtype and wire.shape == (rows, columns)
        return wire
