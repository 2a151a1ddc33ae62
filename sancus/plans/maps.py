"""Linear maps on rows: the `S` and `R` that a plan is made of.

Each maps a matrix `[rows_in, f]` to `[rows_out, f]`, either as a new tensor (`apply`) or added to an
existing one (`add`).
"""

from __future__ import annotations

from typing import Protocol

import torch

from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.rows import add_at, add_taken, take


class RowMap(Protocol):
    """A linear map on rows."""

    rows_in: int
    rows_out: int

    @property
    def empty(self) -> bool:
        """Whether the image is zero whatever the input."""
        ...

    def apply(self, h: torch.Tensor) -> torch.Tensor:
        """The image of `h [rows_in, f]`, `[rows_out, f]`; may share memory with `h`."""
        ...

    def add(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """`out [rows_out, f] +=` the image of `h`."""
        ...

    @property
    def transposed(self) -> RowMap:
        """The transposed map, `[rows_out, f]` to `[rows_in, f]`."""
        ...


class Identity:
    """All rows, as they are."""

    def __init__(self, rows: int) -> None:
        self.rows_in = self.rows_out = rows

    @property
    def empty(self) -> bool:
        """True only without rows."""
        return self.rows_in == 0

    def apply(self, h: torch.Tensor) -> torch.Tensor:
        """`h` itself."""
        return h

    def add(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """`out += h`."""
        out += h

    @property
    def transposed(self) -> Identity:
        """Itself."""
        return self


class Pick:
    """Some rows, by distinct index: row `k` of the image is row `index[k]`."""

    def __init__(self, index: torch.Tensor, rows_in: int) -> None:
        self.index = index
        self.rows_in = rows_in
        self.rows_out = int(index.numel())

    @property
    def empty(self) -> bool:
        """True if nothing is picked."""
        return self.rows_out == 0

    def apply(self, h: torch.Tensor) -> torch.Tensor:
        """`h[index]`."""
        return take(h, self.index)

    def add(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """`out += h[index]`."""
        add_taken(h, self.index, out)

    @property
    def transposed(self) -> Scatter:
        """Rows go back to where they were picked."""
        return Scatter(self.index, self.rows_in)


class Scatter:
    """The transpose of `Pick`: row `k` lands in row `index[k]`, other rows are zero."""

    def __init__(self, index: torch.Tensor, rows_out: int) -> None:
        self.index = index
        self.rows_in = int(index.numel())
        self.rows_out = rows_out

    @property
    def empty(self) -> bool:
        """True if no row lands anywhere."""
        return self.rows_in == 0

    def apply(self, h: torch.Tensor) -> torch.Tensor:
        """A new tensor with the rows of `h` in place."""
        out = h.new_zeros(self.rows_out, h.shape[1])
        self.add(h, out)
        return out

    def add(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """`out[index] += h`."""
        add_at(h, self.index, out)

    @property
    def transposed(self) -> Pick:
        """Rows are picked where they landed."""
        return Pick(self.index, self.rows_out)


class Product:
    """The product with a sparse matrix."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.matrix = matrix
        self.rows_out, self.rows_in = matrix.shape

    @property
    def empty(self) -> bool:
        """True if the matrix has no entry."""
        return self.matrix.nnz == 0

    def apply(self, h: torch.Tensor) -> torch.Tensor:
        """`A h`."""
        return self.matrix.multiply(h)

    def add(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A h`."""
        self.matrix.accumulate(h, out)

    @property
    def transposed(self) -> Product:
        """`Aᵀ`."""
        return Product(self.matrix.transposed)


class Above:
    """Two maps of the same rows, one image above the other."""

    def __init__(self, top: RowMap, bottom: RowMap) -> None:
        assert top.rows_in == bottom.rows_in
        self.top, self.bottom = top, bottom
        self.rows_in = top.rows_in
        self.rows_out = top.rows_out + bottom.rows_out

    @property
    def empty(self) -> bool:
        """True if both images are zero."""
        return self.top.empty and self.bottom.empty

    def apply(self, h: torch.Tensor) -> torch.Tensor:
        """`[top h; bottom h]`."""
        out = h.new_empty(self.rows_out, h.shape[1])
        for row_map, rows in ((self.top, out[: self.top.rows_out]), (self.bottom, out[self.top.rows_out :])):
            if isinstance(row_map, Pick):
                take(h, row_map.index, rows)
            else:
                row_map.add(h, rows.zero_())
        return out

    def add(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """Each image is added to its own rows of `out`."""
        self.top.add(h, out[: self.top.rows_out])
        self.bottom.add(h, out[self.top.rows_out :])

    @property
    def transposed(self) -> Beside:
        """The transposed maps, side by side."""
        return Beside(self.top.transposed, self.bottom.transposed)


class Beside:
    """The transpose of `Above`: the sum of two maps, the first of the upper rows, the second of the lower."""

    def __init__(self, left: RowMap, right: RowMap) -> None:
        assert left.rows_out == right.rows_out
        self.left, self.right = left, right
        self.rows_in = left.rows_in + right.rows_in
        self.rows_out = left.rows_out

    @property
    def empty(self) -> bool:
        """True if both images are zero."""
        return self.left.empty and self.right.empty

    def apply(self, h: torch.Tensor) -> torch.Tensor:
        """`left h_upper + right h_lower`."""
        out = h.new_zeros(self.rows_out, h.shape[1])
        self.add(h, out)
        return out

    def add(self, h: torch.Tensor, out: torch.Tensor) -> None:
        """Both images are added to `out`."""
        self.left.add(h[: self.left.rows_in], out)
        self.right.add(h[self.left.rows_in :], out)

    @property
    def transposed(self) -> Above:
        """The transposed maps, one above the other."""
        return Above(self.left.transposed, self.right.transposed)
