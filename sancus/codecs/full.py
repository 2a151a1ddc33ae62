"""Codec `fp32`: full precision."""

from __future__ import annotations

import torch


class FullPrecision:
    """Values cross as they are, in the run's dtype (float32; float64 under `--dtype float64`)."""

    def wire(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A payload-shaped buffer."""
        return torch.empty(rows, columns, dtype=dtype, device=device)

    def encode(self, payload: torch.Tensor) -> torch.Tensor:
        """The payload itself."""
        return payload

    def decode(self, wire: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """The wire itself."""
        assert wire.dtype == dtype and wire.shape[1] == columns
        return wire
