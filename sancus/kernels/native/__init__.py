"""The native kernel: C with OpenMP, loaded when first used (`sancus.kernels.native.library`)."""
