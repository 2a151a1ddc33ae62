"""Partitioner `contiguous`: equal runs of rows in the order of the input."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.sparse as sp

from .base import Assignment, check_parts, even


@dataclass(frozen=True)
class Contiguous:
    """Equal runs of rows in the order of the input: free, and good when that order is.

    It is the partition of CAGNET and SANCUS. Crawl order or an earlier reordering makes it good;
    a shuffled graph makes it as bad as `random`.
    """

    def assign(self, adjacency: sp.csr_array, parts: int) -> Assignment:
        """Part of each node `[N]`: part sizes differ by one row at most."""
        return even(check_parts(adjacency, parts), parts)
