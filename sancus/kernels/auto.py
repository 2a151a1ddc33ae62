"""Kernel `auto`: native on a CPU where its library loads, Triton on a GPU where it is there, else torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.kernels import gpu
from sancus.kernels.base import Csr, Kernel
from sancus.kernels.native.kernel import NativeKernel
from sancus.kernels.native.library import available
from sancus.kernels.torch_csr import TorchKernel


@dataclass(frozen=True)
class PreparedMatrix:
    """A matrix in the form of one kernel, and that kernel."""

    kernel: Kernel
    prepared: object


class AutoKernel:
    """The fastest kernel that is here for a matrix, by where it is."""

    edges_on_gpu = "triton"

    def __init__(self) -> None:
        self._torch = TorchKernel()
        self._native = NativeKernel() if available() else None
        self.edges = "native" if self._native else "torch"

    def describe(self) -> str:
        """The kernel that multiplies matrices on the CPU, for messages: `native (AVX2, OpenMP)`."""
        return self._native.describe() if self._native else self._torch.describe()

    def prepare(self, matrix: Csr) -> PreparedMatrix:
        """The matrix in the form of the kernel that suits its device."""
        kernel: Kernel = self._torch
        if gpu.compiles(matrix.value):
            from sancus.kernels.triton.triton_kernel import TritonKernel  # takes seconds to import

            kernel = TritonKernel()
        elif self._native and matrix.value.device.type == "cpu":
            kernel = self._native
        return PreparedMatrix(kernel, kernel.prepare(matrix))

    def multiply(self, prepared: PreparedMatrix, dense: torch.Tensor) -> torch.Tensor:
        """`A H` as a new tensor `[m, f]`."""
        return prepared.kernel.multiply(prepared.prepared, dense)

    def accumulate(self, prepared: PreparedMatrix, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H` in place."""
        prepared.kernel.accumulate(prepared.prepared, dense, out)
