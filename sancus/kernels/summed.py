"""A sum of matrices that is multiplied before it is summed up: `X + Y E`, where `Y E` would be dense."""

from __future__ import annotations

from typing import TypeVar

import torch

from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import PickedRows


class Summed:
    """`X + Y E [n, F]`, kept as its parts: a product with a weight is the sum of their products."""

    def __init__(self, x: torch.Tensor | SparseMatrix, y: SparseMatrix, embedding: torch.Tensor) -> None:
        """`x [n, F]` dense or sparse, `y [n, C]`, `embedding [C, F]`."""
        self.x = x
        self.y = y
        self.embedding = embedding

    def __matmul__(self, weight: torch.Tensor) -> torch.Tensor:
        """`X W + Y (E W)`, `[n, f_out]`."""
        product: torch.Tensor = self.x @ weight
        return product + self.y @ (self.embedding @ weight)

    def to_dense(self) -> torch.Tensor:
        """The sum `[n, F]`."""
        x = self.x.to_dense() if isinstance(self.x, SparseMatrix) else self.x
        return x + self.y @ self.embedding


Rowlike = (
    torch.Tensor | SparseMatrix | Summed | PickedRows
)  # rows that a weight can be multiplied to from the right
R = TypeVar("R", bound=Rowlike)  # a kind of rows, where what comes back is of the kind that was given
