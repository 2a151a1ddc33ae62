"""Sampler `neighbour`: so many neighbours of every node (Hamilton, Ying and Leskovec 2017; DistDGL §4.1)."""

from __future__ import annotations

import torch

from sancus.kernels.sample import HopSampler
from sancus.kernels.topology import LEAST_OF_PAIR, REPEATED, UNIFORM, Draw, Sampled
from sancus.sampling.base import By


class Neighbour:
    """Up to the fan-out of every node's neighbours, each node's draw of its own."""

    def __init__(self, replace: bool = False, by: By = "count") -> None:
        """`replace` lets a neighbour be drawn more than once; `by=weight` draws heavy edges more often."""
        self._by_weight = by == "weight"
        self._way = REPEATED if replace else LEAST_OF_PAIR if self._by_weight else UNIFORM

    def sample(
        self, hops: HopSampler, seeds: torch.Tensor, fanouts: tuple[int, ...], keys: tuple[int, ...]
    ) -> Sampled:
        """Hops from `seeds [s]` outward."""
        return hops.sample(seeds, Draw(self._way, fanouts, keys, self._by_weight))
