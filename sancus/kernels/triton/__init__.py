"""Kernels for GPUs, in Triton: the same hashes, and so the same bits, masks and picks as the C library."""
