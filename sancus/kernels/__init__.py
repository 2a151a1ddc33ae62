"""Sparse products behind one contract (`sancus.kernels.base.Kernel`)."""

KERNELS: dict[str, str] = {
    "auto": "sancus.kernels.auto:AutoKernel",
    "native": "sancus.kernels.native.kernel:NativeKernel",
    "torch": "sancus.kernels.torch_csr:TorchKernel",
    "torch-sparse": "sancus.kernels.torch_sparse:TorchSparseKernel",
}
