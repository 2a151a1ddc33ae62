"""Rows of other ranks by number, differentiably: gradients go back to the owners, and add up there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, DIRECTIONS, Entry, Stream


@dataclass(frozen=True, eq=False)
class Loan:
    """Which rows go where: the same forward and, the other way round, backward."""

    group: Group
    asked: torch.Tensor  # [a] own rows, ordered by who asked for them
    going: list[int]  # [p] of these, for each rank
    coming: list[int]  # [p] rows that each rank sends to this one
    forward: Entry
    backward: Entry

    def move(self, rows: torch.Tensor, *, back: bool) -> torch.Tensor:
        """Rows to those who asked, or gradients back to the owners."""
        out, into = (self.coming, self.going) if back else (self.going, self.coming)
        received = rows.new_empty(sum(into), *rows.shape[1:])
        entry, ledger = self.backward if back else self.forward, self.group.ledger
        before = ledger.wire_of(entry.purpose)
        self.group.all_to_all(rows.contiguous(), out, received, into, entry).wait()
        if entry.stream is not None:
            ledger.count_raw(entry.stream, ledger.wire_of(entry.purpose) - before)
        return received


def make_loan(group: Group, owner: torch.Tensor, row: torch.Tensor, layer: int | None) -> Loan:
    """A loan of rows `row [r]` of ranks `owner [r]`, ascending and not this one; every rank calls it.

    In the bill they are payload of `layer`; of evaluation where that is None.
    """
    evaluation, me = Entry("evaluation"), group.members[group.rank]
    numbers = evaluation if layer is None else AGREEMENT
    counts = torch.bincount(owner, minlength=group.size)
    everyone = group.all_gather(counts, numbers)
    going, coming = everyone[:, group.rank].tolist(), counts.tolist()
    asked = row.new_empty(sum(going))
    group.all_to_all(row.contiguous(), coming, asked, going, numbers).wait()
    if layer is None:
        return Loan(group, asked, going, coming, evaluation, evaluation)
    there, back = (Entry("payload", Stream(layer, side, me)) for side in DIRECTIONS)
    return Loan(group, asked, going, coming, there, back)


class Borrowed(torch.autograd.Function):
    """Own rows `[n_i, d]` to the borrowed ones `[r, d]`, in the order in which they were asked for."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, loan: Loan) -> torch.Tensor:
        """Everyone lends what was asked for."""
        ctx.loan, ctx.shape = loan, own.shape
        return loan.move(own.detach()[loan.asked], back=False)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Gradients of a row that several ranks borrowed add up."""
        returned = ctx.loan.move(gradient, back=True)
        total = gradient.new_zeros(ctx.shape)
        return total.index_add_(0, ctx.loan.asked, returned), None
