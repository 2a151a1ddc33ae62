"""Kernel `native`: the C library behind the contract of `sancus.kernels.base`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.errors import UserError
from sancus.kernels.base import Csr
from sancus.kernels.native import calls
from sancus.kernels.native.library import UnavailableError, library
from sancus.kernels.native.operands import check_indices


@dataclass(frozen=True)
class Pattern:
    """A CSR matrix whose indices were checked, since the C code checks none."""

    crow: torch.Tensor
    col: torch.Tensor
    value: torch.Tensor


class NativeKernel:
    """Our own C, AVX-512 or AVX2 or plain, OpenMP: the same bits for any number of threads (CPU only)."""

    edges = "native"

    def __init__(self) -> None:
        try:
            self._library = library()
        except UnavailableError as error:
            raise UserError(f"kernel 'native' cannot be used: {error}; or choose --kernel torch") from error

    def describe(self) -> str:
        """Its name and what it runs on, for messages: `native (AVX2, OpenMP)`."""
        return f"native ({self._library.describe()})"

    def prepare(self, matrix: Csr) -> Pattern:
        """The matrix itself, contiguous and with checked indices."""
        if matrix.value.device.type != "cpu":
            raise UserError("kernel 'native' multiplies on the CPU; choose --kernel torch or --device cpu")
        check_indices(matrix.crow, matrix.col, matrix.shape[1])
        return Pattern(matrix.crow.contiguous(), matrix.col.contiguous(), matrix.value.contiguous())

    def multiply(self, prepared: Pattern, dense: torch.Tensor) -> torch.Tensor:
        """`A H` as a new tensor `[m, f]`."""
        out = dense.new_empty(len(prepared.crow) - 1, dense.shape[1])
        calls.spmm((prepared.crow, prepared.col), prepared.value, dense, out, native=self._library)
        return out

    def accumulate(self, prepared: Pattern, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H` in place."""
        calls.spmm(
            (prepared.crow, prepared.col), prepared.value, dense, out, accumulate=True, native=self._library
        )
