"""Where Triton's kernels run: on tensors of a GPU, where Triton is there; torch's operators elsewhere."""

from __future__ import annotations

import functools
from importlib.util import find_spec

import torch


def compiles(*tensors: torch.Tensor) -> bool:
    """Whether Triton's kernels take these tensors, and rows of them."""
    return all(tensor.device.type == "cuda" for tensor in tensors) and triton_is_here()


@functools.cache
def triton_is_here() -> bool:
    """Whether the extra `gpu` is installed."""
    return find_spec("triton") is not None
