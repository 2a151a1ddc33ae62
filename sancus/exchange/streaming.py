"""Blocks that come owner after owner, and again in the backward pass (SAR's rematerialisation).

Forward they arrive as the plan broadcasts them. Backward they are needed once more. Where a history or a
lossy codec makes them differ from what the owner would send now, they were kept; else they travel again, in
`p − 1` steps in which rank `i` gets the block of owner `i + s` and returns its gradient. So one foreign block
a time is in use (Mostafa, "Sequential Aggregation and Rematerialization", MLSys 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from sancus.exchange.crossing import exact_use
from sancus.exchange.mover import Mover
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.maps import Product

Work = Callable[[int, SparseMatrix, torch.Tensor], torch.Tensor]


class BlockStream:
    """One layer's blocks; the `Blocks` of the attention."""

    def __init__(self, mover: Mover, layer: int, clean: torch.Tensor | None) -> None:
        """`clean` are the own values without dropout, for policies that measure drift."""
        self._mover = mover
        self._layer = layer
        self._clean = clean
        self._kept: dict[int, torch.Tensor] = {}
        self._own = mover.group.rank

    @property
    def own(self) -> SparseMatrix:
        """The own rows over the own columns."""
        return self._matrix(self._own)

    def first(self, values: torch.Tensor) -> Iterator[tuple[int, SparseMatrix, torch.Tensor]]:
        """Own block, made while the first foreign one travels, then the others as they arrive."""
        arrivals = self._mover.arrivals(values, self._layer, self._clean)
        keeps = not (self._mover.group.clock.exact or self._mover.crossing.repeatable())
        yield self._own, self._matrix(self._own), values
        for owner, rows in arrivals:
            if keeps:
                self._kept[owner] = rows
            yield owner, self._matrix(owner), rows

    def again(self, values: torch.Tensor, work: Work) -> torch.Tensor:
        """The gradient of the own values, from all ranks."""
        mover, crossing, size = self._mover, self._mover.crossing, self._mover.group.size
        gradient = work(self._own, self._matrix(self._own), values)
        if size == 1 or crossing.absent("forward"):
            return gradient
        if not crossing.repeatable():
            parts = {owner: work(owner, self._matrix(owner), rows) for owner, rows in self._kept.items()}
            self._kept.clear()
            return self._return_all(gradient, parts)
        repeat = exact_use(mover.group, self._layer, "forward", "payload")  # rows travel once more
        back = crossing.stepwise_use(self._layer)
        parts = {}
        for step in range(1, size):
            owner = (self._own + step) % size
            count = mover.plan.forward.add[owner].rows_in
            rows = crossing.shift(values, step, count, repeat)
            part = work(owner, self._matrix(owner), rows) if count else rows
            del rows
            if back is None:
                parts[owner] = part
            else:
                gradient = gradient + crossing.shift(part, -step, len(values), back)
        return self._return_all(gradient, parts) if back is None else gradient

    def _return_all(self, gradient: torch.Tensor, parts: dict[int, torch.Tensor]) -> torch.Tensor:
        owners = [rank for rank in range(self._mover.group.size) if rank != self._own]
        others = [parts.get(owner, gradient[:0]) for owner in owners]
        return self._mover.return_rows(torch.cat([gradient, *others]), self._layer)

    def _matrix(self, owner: int) -> SparseMatrix:
        leg = self._mover.plan.forward
        row_map = leg.diagonal if owner == self._own else leg.add[owner]
        assert isinstance(row_map, Product), "a plan that broadcasts rows multiplies them at the receiver"
        return row_map.matrix
