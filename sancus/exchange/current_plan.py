"""The plan of the present pass: most plans are always the same, some draw other rows for every update."""

from __future__ import annotations

from functools import cached_property
from typing import cast

import torch

from sancus.exchange.crossing import Crossing
from sancus.exchange.dropout import DropoutKey
from sancus.kernels.matrix import SparseMatrix
from sancus.plans import changes
from sancus.plans.base import ChangingPlan, EpochPlan, Plan

DRAW = 1 << 40  # in the place of a layer in the key of an update: no layer has this number


class CurrentPlan:
    """What of a plan takes part now: in training its rows of this update, in evaluation all of them."""

    def __init__(self, whole: Plan, crossing: Crossing, seed: int) -> None:
        """`whole` is the plan of all rows that may cross; `seed` is that of the run."""
        self.whole = whole
        self._crossing = crossing
        self._seed = seed
        self._changing = cast("ChangingPlan", whole) if changes(whole) else None

    @property
    def now(self) -> Plan:
        """Whose legs are to be run."""
        return self._drawn() or self.whole

    @property
    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over own rows and those that others send in this pass, `[n_i, n_i + r_i]`."""
        if self._crossing.absent("forward"):
            return self.whole.forward.diagonal.matrix
        drawn = self._drawn()
        return self._all_local_rows if drawn is None else drawn.local_rows()

    def present(self, rows: torch.Tensor) -> torch.Tensor:
        """Of own rows and all that may cross `[n_i + r, …]`, those that are columns of `local_rows`."""
        if self._crossing.absent("forward"):
            return rows[: self.whole.forward.diagonal.rows_in]
        drawn = self._drawn()
        return rows if drawn is None else rows[drawn.columns]

    @cached_property
    def _all_local_rows(self) -> SparseMatrix:
        return self.whole.local_rows()

    def _drawn(self) -> EpochPlan | None:
        """The rows of this update; None where all take part."""
        clock = self._crossing.clock
        if self._changing is None or clock.exact:
            return None
        return self._changing.at(DropoutKey(self._seed, clock.epoch, DRAW, clock.step).mixed())
