"""Codec `auto`: more bits for the rows that matter, and for the later epochs, within a budget.

Sylvie §5 names two observations for future work: early epochs bear fewer bits than late ones, and rows that
many others sum need more. AdaQP weighs a row by what its rounding adds to the variance of the receivers'
sums: its weight in these sums × the square of its range. Here the *number* of rows with 1, 2, 4 and 8 bits
follows from the budget alone, so that a receiver knows the size of what comes; *which* rows get them is the
owner's choice at every send and travels along, two bits a row.

Wire format: the width of every row as two bits (0: 1 bit, 1: 2, 2: 4, 3: 8), four rows a byte, lowest bits
first; then the rows of each width, from 1 bit to 8, in order, each as codec `intB` has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sancus.codecs.base import Moment, refuse_infinite
from sancus.codecs.low_bit import TAILS, Tail, decode_rows, encode_rows, row_bytes
from sancus.kernels.bits import WIDTHS

ROWS_A_BYTE = 4


@dataclass(frozen=True)
class AutoBits:
    """1, 2, 4 or 8 bits a row, `budget` bits a value on the mean of rows and epochs.

    `ramp` is how much of the room around the budget the stages use: the first epoch has
    `budget − ramp · room` bits a value, the last `budget + ramp · room`; 0 keeps all epochs alike. Zero
    points and scales (`tail`, see `LowBit`) come on top.
    """

    lossless: ClassVar[bool] = False
    budget: float = 2.5
    ramp: float = 0.5
    tail: Tail = "full"

    def __post_init__(self) -> None:
        if not WIDTHS[0] <= self.budget <= WIDTHS[-1]:
            limits = f"between {WIDTHS[0]} and {WIDTHS[-1]} bits a value"
            raise ValueError(f"budget={self.budget!r} must be {limits}")
        if not 0 <= self.ramp <= 1:
            raise ValueError(f"ramp={self.ramp!r} must be between 0 and 1")
        if self.tail not in TAILS:
            raise ValueError(f"tail={self.tail!r} must be full or short")

    def wire(
        self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, stage: float
    ) -> torch.Tensor:
        """Room for the code of a payload, `[bytes, 1]`."""
        sizes = self._sizes(rows, columns, stage)
        return torch.empty(sum(sizes), 1, dtype=torch.uint8, device=device)

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        """The code of a payload: rows with the largest `weight · range²` get the most bits."""
        rows = len(payload)
        refuse_infinite(torch.isfinite(payload).all(dim=1))
        counts = self.row_counts(rows, moment.stage)
        spread = (payload.amax(dim=1) - payload.amin(dim=1)).float() if payload.numel() else weight
        order = torch.argsort(weight.float() * spread.square(), stable=True)
        place = torch.empty(rows, dtype=torch.uint8, device=payload.device)
        parts = []
        for width, ids in enumerate(order.split(counts)):
            place[ids] = width
            ids = ids.sort().values
            parts.append(encode_rows(payload[ids], WIDTHS[width], moment, ids, self.tail).view(-1, 1))
        return torch.cat([_four_a_byte(place).view(-1, 1), *parts])

    def decode(
        self, wire: torch.Tensor, rows: int, columns: int, dtype: torch.dtype, stage: float
    ) -> torch.Tensor:
        """The payload `[rows, columns]`: the rows of each width are decoded and put in their places."""
        place, *parts = wire.flatten().split(self._sizes(rows, columns, stage))
        widths = _one_a_byte(place)[:rows]
        out = torch.empty(rows, columns, dtype=dtype, device=wire.device)
        for width, part in enumerate(parts):
            mask = widths == width
            wire_rows = part.view(-1, row_bytes(columns, WIDTHS[width], self.tail))
            out[mask] = decode_rows(wire_rows, WIDTHS[width], columns, self.tail).to(dtype)
        return out

    def row_counts(self, rows: int, stage: float) -> list[int]:
        """Rows of each width: every width has `r` times as many as the next narrower, `r` by the budget.

        The wide ones are rounded down, so that the budget is kept for any number of rows.
        """
        shares = self._shares(stage)
        counts = [math.floor(share * rows) for share in shares[1:]]
        return [rows - sum(counts), *counts]

    def _shares(self, stage: float) -> list[float]:
        room = min(self.budget - WIDTHS[0], WIDTHS[-1] - self.budget)
        target = self.budget + self.ramp * room * (2 * stage - 1)
        low, high = 0.0, 1.0  # r = t / (1 − t)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _mean_bits(_geometric(middle)) < target else (low, middle)
        return _geometric(low)

    def _sizes(self, rows: int, columns: int, stage: float) -> list[int]:
        """Bytes of each part of the wire: two bits a row for its width, then the rows of each width."""
        counts = self.row_counts(rows, stage)
        widths = [row_bytes(columns, bits, self.tail) for bits in WIDTHS]
        return [
            -(-rows // ROWS_A_BYTE),
            *(count * width for count, width in zip(counts, widths, strict=True)),
        ]


def _geometric(t: float) -> list[float]:
    """Shares of the widths in the ratio `1 : r : r² : r³` with `r = t / (1 − t)`."""
    steps = len(WIDTHS) - 1
    terms = [t**k * (1 - t) ** (steps - k) for k in range(len(WIDTHS))]
    return [term / sum(terms) for term in terms]


def _mean_bits(shares: list[float]) -> float:
    return sum(share * bits for share, bits in zip(shares, WIDTHS, strict=True))


def _four_a_byte(place: torch.Tensor) -> torch.Tensor:
    """Numbers below 4 `[n]` as `⌈n/4⌉` bytes."""
    whole = place.new_zeros(-(-len(place) // ROWS_A_BYTE) * ROWS_A_BYTE)
    whole[: len(place)] = place
    return (whole.view(-1, ROWS_A_BYTE) << _shifts(place)).sum(dim=1, dtype=torch.uint8)


def _one_a_byte(data: torch.Tensor) -> torch.Tensor:
    """The inverse: `4 k` numbers from `k` bytes."""
    return ((data.view(-1, 1) >> _shifts(data)) & 3).flatten()


def _shifts(like: torch.Tensor) -> torch.Tensor:
    return torch.arange(0, 2 * ROWS_A_BYTE, 2, dtype=torch.uint8, device=like.device)
