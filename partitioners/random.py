"""Partitioner `random`: rows shuffled, the worst case that a claim has to survive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from .base import Assignment, check_parts, check_seed, even


@dataclass(frozen=True)
class Random:
    """Equal numbers of rows, drawn at random: cuts nearly every edge, and balances any graph.

    Use it to see what staleness and few bits really cost: good parts hide the price.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def assign(self, adjacency: sp.csr_array, parts: int) -> Assignment:
        """Part of each node `[N]`: part sizes differ by one row at most."""
        nodes = check_parts(adjacency, parts)
        return np.random.default_rng(self.seed).permutation(even(nodes, parts))
