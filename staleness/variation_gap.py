"""Policy `variation-gap`: send what has changed (SANCUS Definition 3, Algorithm 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from .base import Norm, View, check_bound


@dataclass(frozen=True)
class VariationGap:
    """An owner sends when its payload has drifted from what the receivers hold by more than `gap`.

    Algorithm 6: `‖H_i − H̃_i‖ > ε_H` makes the owner ACTIVE. How we read it:

    - *The norm* is not given. `norm=mean` is the mean absolute difference over all entries, so that a gap
      does not depend on the number of rows; `norm=relative` divides it by the mean absolute value of the
      current payload, so that one gap suits every layer and width.
    - `H̃_i` is what the receivers really hold, under the plan in use. A mask of dropout is noise, not drift:
      where a model drops out, both are rows of a pass without dropout, now and when they were last sent.
    - Definition 3 sets no limit on age; we do (`max_age`), as a drift that stays below the gap for ever
      would leave others with the first epoch's rows.
    """

    gap: float = 0.01
    norm: Norm = "mean"
    max_age: int = 20
    drift_norm: Norm = field(init=False)
    absent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.gap) or self.gap < 0:
            raise ValueError(f"gap={self.gap} must be a number that is not negative")
        check_bound("max_age", self.max_age)
        object.__setattr__(self, "drift_norm", self.norm)

    def decide(self, view: View) -> bool:
        """SEND when the drift exceeds the gap."""
        return view.drift > self.gap
