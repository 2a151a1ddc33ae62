"""Conditions that a device has yet to tell: collected as they arise, and read in one copy to the host.

To ask a GPU for one number is to wait until it has done all that came before. So where messages and rows are
in its memory, headers, checksums and finiteness are compared there, and a rank asks once an update for all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class Checks:
    """What is still to be asked, in order."""

    def __init__(self) -> None:
        self._open: list[tuple[torch.Tensor, Callable[[], None]]] = []

    def add(self, wrong: torch.Tensor, explain: Callable[[], None]) -> None:
        """`explain` is called when `wrong []` is read and is true; it may raise."""
        self._open.append((wrong, explain))

    def read(self, *flags: torch.Tensor) -> list[bool]:
        """Ask everything, and the values of `flags []` along with it: one copy, or none."""
        pending, self._open = self._open, []
        if not pending and not flags:
            return []
        told: list[bool] = torch.stack([*(wrong for wrong, _ in pending), *flags]).tolist()
        for (_, explain), wrong in zip(pending, told, strict=False):
            if wrong:
                explain()
        return told[len(pending) :]
