"""The quantiser of Sylvie (eq. 3-5), which is also SuperGCN's, written down from the paper.

Two things are not the paper's, and given: the random numbers of eq. 4, and how the zero point and the scale
of a row are written in two bytes each (the paper's Table 3 implies four bytes a row, and says no more).
"""

from __future__ import annotations

import struct

import torch
import xxhash

from sancus.kernels.bits_torch import _uniform

FORWARD, BACKWARD = 0, 1


def random_numbers(
    shape: tuple[int, int], seed: int, epoch: int, layer: int, direction: int, owner: int, receiver: int
) -> torch.Tensor:
    """The numbers in [0, 1) by which the run rounds this payload, `[rows, f]`."""
    words = struct.pack("<6q", seed, epoch, layer, direction, owner, receiver)
    numbers = _uniform(xxhash.xxh3_64_intdigest(words) >> 1, torch.arange(shape[0]), shape[1])
    return numbers.double()


def through_the_wire(h: torch.Tensor, bits: int, random: torch.Tensor) -> torch.Tensor:
    """Quantise and dequantise the rows `h [n, f]`: what a receiver holds of them."""
    b = 2**bits - 1  # B, the number of bins
    h = h.float().double()  # payloads are single precision before they are rounded
    least, most = h.amin(dim=1), h.amax(dim=1)
    zero = two_bytes(least, up=False)
    scale = two_bytes((most - zero) / b, up=True)
    normed = (h - zero[:, None]) / torch.where(scale > 0, scale, 1)[:, None]  # eq. 3: (h − min)/(max − min) B
    low = normed.floor()
    level = low + (random < normed - low)  # eq. 4: up with probability of the part that is left
    return (scale[:, None].float() * level.float() + zero[:, None].float()).double()  # eq. 5


def two_bytes(x: torch.Tensor, *, up: bool) -> torch.Tensor:
    """`x [n]` as the nearest number of 8 bits of mantissa (bfloat16) that is not below, or not above, it."""
    mantissa, exponent = torch.frexp(x.float().double())  # |mantissa| in [1/2, 1)
    steps = mantissa * 2**8
    return torch.ldexp(steps.ceil() if up else steps.floor(), exponent - 8)
