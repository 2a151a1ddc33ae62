"""Kernel `torch-sparse`: that package's product, where it is installed (`sancus[torch-sparse]`)."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from sancus.errors import UserError
from sancus.kernels.base import Csr


class TorchSparseKernel:
    """torch-sparse's CSR product, where that package is installed."""

    edges = "torch"

    def __init__(self) -> None:
        try:
            self._package: Any = importlib.import_module("torch_sparse")
        except (ImportError, OSError) as error:
            raise UserError(
                f"kernel 'torch-sparse' cannot be used: {error}; "
                "install sancus[torch-sparse], or choose --kernel auto"
            ) from error

    def describe(self) -> str:
        """Its name and version, for messages: `torch-sparse 0.6.18`."""
        return f"torch-sparse {self._package.__version__}"

    def prepare(self, matrix: Csr) -> Any:
        """A `torch_sparse.SparseTensor`."""
        return self._package.SparseTensor(
            rowptr=matrix.crow,
            col=matrix.col.to(torch.int64),
            value=matrix.value,
            sparse_sizes=matrix.shape,
            is_sorted=True,
            trust_data=True,
        )

    def multiply(self, prepared: Any, dense: torch.Tensor) -> torch.Tensor:
        """`A H` as a new tensor `[m, f]`.

        An empty one is made here, since the package divides by its size; for an operand that requires a
        gradient the package would sort a transpose of its own.
        """
        rows = prepared.size(0)
        if not rows or not dense.numel():
            return dense.new_zeros(rows, dense.shape[1])
        product: torch.Tensor = self._package.matmul(prepared, dense.detach().contiguous())
        return product

    def accumulate(self, prepared: Any, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H` in place, by way of the product."""
        out += self.multiply(prepared, dense)


def csr_of(matrix: Any) -> Csr:
    """The entries of a `torch_sparse.SparseTensor`, sharing its memory; without values every entry is 1."""
    crow, col, value = matrix.csr()
    rows, columns = matrix.sparse_sizes()
    if value is None:
        value = torch.ones(len(col), device=col.device)
    return Csr(crow, col, value, (int(rows), int(columns)))
