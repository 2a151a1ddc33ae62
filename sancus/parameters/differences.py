"""What a codec is given of tensors that change slowly: themselves, or how they differ from the call before.

Gradients of the whole graph hardly change from one epoch to the next, so their difference is small, and what
its code leaves out is too. Every replica adds the sums of differences up, from zero, to the sum of the
tensors themselves (EF21, Richtárik et al., NeurIPS 2021). An optimiser that divides by the size of past
gradients, as Adam does, then sees sums that lag a little, instead of sums of which most is missing, or late,
in every call. The code must be fine enough to catch up within a few calls: with one bit a value training was
seen to swing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

Of = Literal["gradients", "differences"]
GIVEN, TOTAL = "given", "total"


class Course:
    """Tensors to what is coded of them, and back; remembers nothing where tensors are coded themselves."""

    def __init__(self, of: Of) -> None:
        self._differs = of == "differences"
        self._given: list[torch.Tensor] = []  # of the last call
        self._total: list[torch.Tensor] = []  # the sums so far

    def before(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What is to be coded."""
        if not self._differs:
            return list(tensors)
        last, self._given = self._given, [tensor.clone() for tensor in tensors]
        return [now - then for now, then in zip(tensors, last, strict=True)] if last else list(tensors)

    def after(self, sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sums of tensors, from those of what was coded."""
        if not self._differs:
            return list(sums)
        if self._total:
            sums = [total + change for total, change in zip(self._total, sums, strict=True)]
        self._total = [total.clone() for total in sums]
        return list(sums)

    def state(self) -> dict[str, torch.Tensor]:
        """Both lists, by place."""
        named = ((GIVEN, self._given), (TOTAL, self._total))
        return {f"{name}/{place}": tensor for name, kept in named for place, tensor in enumerate(kept)}

    def restore(self, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        """Go on from a `state`, in which others may keep more."""
        self._given, self._total = (
            [state[f"{name}/{place}"].to(device) for place in range(_count(state, name))]
            for name in (GIVEN, TOTAL)
        )


def _count(state: Mapping[str, torch.Tensor], name: str) -> int:
    return sum(key.startswith(f"{name}/") for key in state)
