"""Policy `row-gap`: of every payload only the rows that have changed (SANCUS Definition 3, row by row)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from .base import Norm, Numbers, View, YesNo, check_bound


@dataclass(frozen=True)
class RowGap:
    """A row crosses when it has drifted from what its receiver holds by more than `gap`; a bitmap says which.

    `variation-gap` sends whole payloads or nothing, so a few rows that move make all of them cross. Here
    every row is judged for itself:

    - *The norm.* `norm=mean` is the mean absolute difference over the entries of the row; `norm=relative`
      divides it by the mean absolute value of all rows of the payload, not of the row alone: a row that is
      small beside the others adds little to any sum, however much it turns.
    - *The age* of every row is capped by `max_age`, also of one that never moves. With `max_age=0` all rows
      cross, as with `always`.
    """

    gap: float = 0.1
    norm: Norm = "relative"
    max_age: int = 20
    drift_norm: Norm = field(init=False)
    absent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.gap) or self.gap < 0:
            raise ValueError(f"gap={self.gap} must be a number that is not negative")
        check_bound("max_age", self.max_age)
        object.__setattr__(self, "drift_norm", self.norm)

    def decide(self, view: View) -> bool:
        """SEND: which rows is said by `pick`."""
        return True

    def pick(self, drift: Numbers) -> YesNo:
        """The rows whose drift exceeds the gap."""
        return drift > self.gap
