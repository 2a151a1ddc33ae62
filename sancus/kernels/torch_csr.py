"""Kernel `torch`: torch's own CSR product, which is always there."""

from __future__ import annotations

import warnings

import torch

from sancus.kernels.base import Csr


class TorchKernel:
    """torch's CSR product: MKL on a CPU, cuSPARSE on CUDA (CUDA has never run)."""

    edges = "torch"

    def describe(self) -> str:
        """Its name, for messages."""
        return "torch (CSR)"

    def prepare(self, matrix: Csr) -> torch.Tensor:
        """A `torch.sparse_csr` tensor; its beta-state warning is not the user's concern."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                matrix.crow, matrix.col.to(torch.int64), matrix.value, matrix.shape, check_invariants=False
            )

    def multiply(self, prepared: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """`A H` as a new tensor `[m, f]`."""
        out = torch.zeros(prepared.shape[0], dense.shape[1], dtype=dense.dtype, device=dense.device)
        self.accumulate(prepared, dense, out)
        return out

    def accumulate(self, prepared: torch.Tensor, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H` in place."""
        if out.numel() and prepared.shape[1]:
            torch.addmm(out, prepared, dense.contiguous(), out=out)
