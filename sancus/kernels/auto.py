"""The kernel that is used when none is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.kernels.base import Csr, Kernel
from sancus.kernels.native.kernel import NativeKernel
from sancus.kernels.native.library import available
from sancus.kernels.torch_csr import TorchKernel


@dataclass(frozen=True)
class Chosen:
    """A matrix in the form of the kernel that takes it."""

    kernel: Kernel
    prepared: object


class AutoKernel:
    """The fastest kernel that is here: native on a CPU where its library loads, torch elsewhere."""

    def __init__(self) -> None:
        self._torch = TorchKernel()
        self._native = NativeKernel() if available() else None
        self.edges = "native" if self._native else "torch"

    def describe(self) -> str:
        """For people: what a matrix on the CPU is multiplied with."""
        return self._native.describe() if self._native else self._torch.describe()

    def prepare(self, matrix: Csr) -> Chosen:
        """The matrix in the form of the kernel that suits its device."""
        on_cpu = matrix.value.device.type == "cpu"
        kernel: Kernel = self._native if self._native and on_cpu else self._torch
        return Chosen(kernel, kernel.prepare(matrix))

    def multiply(self, prepared: Chosen, dense: torch.Tensor) -> torch.Tensor:
        """`A H` as a new tensor `[m, f]`."""
        return prepared.kernel.multiply(prepared.prepared, dense)

    def accumulate(self, prepared: Chosen, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H` in place."""
        prepared.kernel.accumulate(prepared.prepared, dense, out)
