"""The contract of a codec: payload rows to bytes on the wire, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Moment:
    """When and for whom a payload is encoded: all that a codec may depend on beside the payload."""

    seed: int  # differs between any two payloads of a run; 63 bits
    stage: float  # of the training: 0 in its first epoch, 1 in its last


class Codec(Protocol):
    """Encodes a payload `[rows, f]` into a tensor `[k, w]` on the wire.

    The shape of the wire depends on the shape of the payload and the stage of the training alone, so that a
    receiver knows it beforehand. `decode(encode(x))` has the shape and dtype of `x`. The same payload and
    moment give the same bits, whatever the machine and its threads.

    A codec whose row `k` of the wire is the code of row `k` of the payload may say so, by an attribute
    `row_by_row = True`: its error is then measured on a few rows, and not by decoding a whole payload.
    """

    lossless: bool  # decode(encode(x)) is x

    def wire(
        self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, stage: float
    ) -> torch.Tensor:
        """An empty tensor for what `encode` makes of a payload `[rows, columns]` of `dtype`."""
        ...

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        """What crosses the wire; may share memory with the payload.

        `weight [rows]` says how much the receivers' sums depend on each row. Values that cannot be encoded
        (NaN, infinity) are a `ValueError` that names the row.
        """
        ...

    def decode(
        self, wire: torch.Tensor, rows: int, columns: int, dtype: torch.dtype, stage: float
    ) -> torch.Tensor:
        """The payload as receivers see it; may share memory with `wire`."""
        ...


def refuse_infinite(finite: torch.Tensor) -> None:
    """Raise a `ValueError` that names the first row of a payload where `finite [rows]` is False.

    On a device nobody asks: the sender has all its payloads checked there (`sancus.exchange.health`).
    """
    if finite.device.type == "cpu" and not bool(finite.all()):
        row = int(torch.nonzero(~finite)[0, 0])
        raise ValueError(f"row {row} of the payload holds NaN or infinity")
