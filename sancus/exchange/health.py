"""Health: NaN and infinity are seen where they arise, and stop all ranks in the same epoch.

A rank that meets one goes on, because the others would wait for what it does not send, and remembers the
first: what it was, and the number of the last collective by then, the same on all ranks. The gradients that
it gives to the sum over ranks are then NaN, which every rank finds in the sum, before any weight is touched;
what comes up after that, in the evaluation, is a flag in the figures that ranks gather each epoch. All ranks
then gather what each of them met, and stop with the earliest. On a GPU the flags stay there until that sum:
a rank asks once an update.
"""

from __future__ import annotations

import math
from typing import NoReturn

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.comm.records import gather_json
from sancus.errors import UserError

ADVICE = "lower --lr, or look at the features"


class Health:
    """The first number of this rank that is not finite, if any."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._first: tuple[int, str] | None = None  # when, and what
        self._doubts: list[torch.Tensor] = []  # [] each: what a device has found since the last sum

    @property
    def bad(self) -> bool:
        """Whether something was met."""
        return self._first is not None

    def note(self, what: str, number: int | None = None) -> None:
        """Something is wrong on this rank, since collective `number`, the last one; only the first counts."""
        number = self._group.number if number is None else number
        if self._first is None or number < self._first[0]:
            self._first = (number, what)

    def note_later(self, wrong: torch.Tensor, what: str) -> None:
        """The same where `wrong []` is true, which is asked of its device together with everything else."""
        number = self._group.number
        self._doubts.append(wrong)
        self._group.desk.checks.add(wrong, lambda: self.note(what, number))

    def poisoned(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """What this rank gives to a sum over ranks: NaN where something is wrong, noted or in doubt."""
        doubts, self._doubts = self._doubts, []
        if self.bad:
            return [torch.full_like(tensor, math.nan) for tensor in tensors]
        if not doubts:
            return tensors
        wrong = torch.stack(doubts).any()
        return [torch.where(wrong, math.nan, tensor) for tensor in tensors]

    def check_payload(self, payload: torch.Tensor, stream: Stream, epoch: int) -> None:
        """A payload `[rows, f]` of this rank, before it is encoded."""
        where = f"rank {stream.owner}, layer {stream.layer}, {stream.direction}, epoch {epoch}"
        if payload.device.type != "cpu":
            self.note_later(
                ~torch.isfinite(payload).all(), f"{where}: the payload holds NaN or infinity; {ADVICE}"
            )
        elif not finite(payload):
            row = int(torch.nonzero(~torch.isfinite(payload).all(dim=1))[0, 0])
            self.note(f"{where}: row {row} of the payload holds NaN or infinity; {ADVICE}")

    def check_over(self) -> None:
        """A loop of a user's own that never summed gradients must hear of it too."""
        if self._first is not None:
            raise UserError(self._first[1])

    def stop(self, otherwise: str, device: torch.device) -> NoReturn:
        """All ranks come here together, and leave with the earliest of what they met."""
        everyone = gather_json(self._group, self._first, device)
        _, what = min((tuple(first) for first in everyone if first), default=(0, otherwise))
        raise UserError(what)


def finite(tensor: torch.Tensor) -> bool:
    """Whether all values are finite: one sum, at memory speed; a closer look where that is not finite."""
    total = tensor.sum()
    return bool(torch.isfinite(total)) or bool(torch.isfinite(tensor).all())
