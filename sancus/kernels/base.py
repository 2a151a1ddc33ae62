"""The contract of a kernel: a weighted sparse-dense product that can add to an existing output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Csr:
    """A compressed-row matrix as three tensors. Entries may repeat; their order within a row is free."""

    crow: torch.Tensor  # [m + 1] int64
    col: torch.Tensor  # [nnz] int32, or int64 where n > 2^31 - 1
    value: torch.Tensor  # [nnz], the dtype of the run
    shape: tuple[int, int]  # (m, n)


class Kernel(Protocol):
    """`out (+)= A H` for a CSR `A [m, n]` and a dense `H [n, f]`.

    The result may not depend on the number of threads by more than rounding; empty rows, empty
    matrices and `f = 0` are legal. `H` may have any strides; `out` is contiguous.
    """

    def prepare(self, matrix: Csr) -> Any:
        """The matrix in the kernel's own form: made once, then passed to every product with it."""
        ...

    def multiply(self, prepared: Any, dense: torch.Tensor) -> torch.Tensor:
        """`A H` as a new tensor `[m, f]`."""
        ...

    def accumulate(self, prepared: Any, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H` in place; `out [m, f]` is contiguous."""
        ...


def index_dtype(bound: int) -> torch.dtype:
    """The dtype of numbers below `bound`: int32 as long as they fit."""
    return torch.int32 if bound <= 2**31 - 1 else torch.int64
