"""Sampler `labor`: targets agree on whom they draw, so that a batch has fewer rows.

M. F. Balın and Ü. V. Çatalyürek, "Layer-neighbor sampling: defusing neighborhood explosion in GNNs",
NeurIPS 2023, in its form with a fixed number of neighbours: each target takes those with the least random
numbers, and a source has one number for all targets of a hop. A row by itself is drawn as by `neighbour`.
"""

from __future__ import annotations

import torch

from sancus.kernels.sample import HopSampler
from sancus.kernels.topology import LEAST_OF_SOURCE, Draw, Sampled
from sancus.sampling.base import By


class Labor:
    """Up to the fan-out of every node's neighbours; nodes with common neighbours draw the same ones."""

    def __init__(self, by: By = "count") -> None:
        """`by=weight` draws heavy edges more often."""
        self._by_weight = by == "weight"

    def sample(
        self, hops: HopSampler, seeds: torch.Tensor, fanouts: tuple[int, ...], keys: tuple[int, ...]
    ) -> Sampled:
        """Hops from `seeds [s]` outward."""
        return hops.sample(seeds, Draw(LEAST_OF_SOURCE, fanouts, keys, self._by_weight))
