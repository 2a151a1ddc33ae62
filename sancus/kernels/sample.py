"""Sampled neighbourhoods, hop by hop: native where the library loads, else in torch, with the same picks.

From a hop's key and the id of a target come its draws, and from nothing else: not from the position of the
target in its batch, nor from the rank or the thread that asks. `T_v = Σ_u value_vu h_u` over the entries of a
hop is right on average for every row with a draw:

- UNIFORM: of `d` entries any `k`, all sets alike. An entry counts `Â_vu d/k`.
- REPEATED: `k` draws of any entry, which counts `Â_vu d/k`; by weight, of each as likely as its share of the
  row's weights, and it counts `Â_vu Σ_w |A_vw| / (k |A_vu|)`.
- LEAST_OF_PAIR: the `k` least keys, a hash of target and source. An entry counts `Â_vu d/k`. By weight a key
  is divided by `|A_vu|`, and an entry counts `Â_vu max(1, 1/(τ |A_vu|))`, where τ is the next key.
- LEAST_OF_SOURCE: the same with a hash of the source alone, so that targets agree on whom to draw.

A row with no more than `k` entries has all of them, as they are, but where draws are repeated.

By weight the least keys are priority sampling (Duffield, Lund and Thorup 2007), whose estimates of sums are
unbiased; `LEAST_OF_SOURCE` is LABOR with a fixed number of neighbours (Balın and Çatalyürek 2023).
"""

from __future__ import annotations

from typing import Protocol

import torch

from sancus.kernels.native.library import available
from sancus.kernels.native.sampling import NativeSampler
from sancus.kernels.sample_torch import TorchSampler
from sancus.kernels.topology import Draw, Sampled, Topology


class HopSampler(Protocol):
    """Samples hops of one topology; one object a thread."""

    def sample(self, seeds: torch.Tensor, draw: Draw) -> Sampled:
        """Hops from `seeds [s]`, distinct ids, outward: one a fan-out of `draw`."""
        ...


def hop_sampler(topology: Topology, dtype: torch.dtype) -> HopSampler:
    """The fastest sampler that is here; `dtype` is that of the values."""
    if available():
        return NativeSampler(topology, dtype)
    return TorchSampler(topology, dtype)
