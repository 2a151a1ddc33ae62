"""Links between ranks and memories of GPUs, as their makers print them: measured on none of them by us."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from sancus.errors import UserError
from sancus.report.units import bytes_text

LINKS = {  # bytes a second, in one direction
    "nvlink3": 300e9,  # of an A100
    "nvlink4": 450e9,  # of an H100
    "pcie4": 32e9,  # 16 lanes
    "pcie5": 64e9,
    "infiniband-hdr": 25e9,  # one port
    "infiniband-ndr": 50e9,
}
SIZES = {"MB": 1e6, "GB": 1e9, "TB": 1e12}
HOST = "runtime"  # the part of a rank's memory that is not the GPU's


class Needs(Protocol):
    """An estimate for one number of ranks."""

    @property
    def ranks(self) -> int:
        """How many."""
        ...

    @property
    def memory(self) -> dict[str, float]:
        """Bytes of a rank by what they are for."""
        ...


def check_device_memory(estimates: Sequence[Needs], memory: str) -> None:
    """Refuse numbers of ranks that need more than `memory`, `80GB` for instance, on a GPU."""
    match = re.fullmatch(r"([0-9.]+)\s*([MGT]B)", memory.strip())
    try:
        size = float(match[1]) * SIZES[match[2]] if match else 0.0
    except ValueError:
        size = 0.0
    if not size > 0:
        raise UserError(f"--device-memory {memory!r}: write a number and MB, GB or TB, e.g. 80GB")
    for one in estimates:
        needed = sum(value for part, value in one.memory.items() if part != HOST)
        if needed > size:
            raise UserError(
                f"--device-memory {memory}: each of {one.ranks} ranks needs {bytes_text(needed)} on its GPU; "
                "use more ranks, a smaller --hidden, or --plan halo"
            )
