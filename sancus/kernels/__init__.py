"""Sparse products behind one contract (`sancus.kernels.base.Kernel`)."""

KERNELS: dict[str, str] = {
    "torch": "sancus.kernels.torch_csr:TorchKernel",
}
