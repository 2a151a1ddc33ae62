"""Kernels: the sparse-dense product `A @ H`, in the implementations that `--kernel` chooses from.

The contract is `sancus.kernels.base.Kernel`. The other inner loops are here too: rows in few bits (`bits`),
dropout masks (`masks`), attention over edges (`edges`), rows by index (`rows`).
"""

KERNELS: dict[str, str] = {
    "auto": "sancus.kernels.auto:AutoKernel",
    "native": "sancus.kernels.native.kernel:NativeKernel",
    "torch": "sancus.kernels.torch_csr:TorchKernel",
    "torch-sparse": "sancus.kernels.torch_sparse:TorchSparseKernel",
}
