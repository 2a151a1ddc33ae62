"""Pre-aggregation alone: the owner sums everything, one payload row for every row of the receiver."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from sancus.plans.cover import Cover
from sancus.plans.prepost import Prepost


class Pre(Prepost):
    """SuperGCN's "pre_aggr": every row with an entry is covered, no column is."""

    @staticmethod
    def cover(block: sp.csr_array) -> Cover:
        """All rows that have an entry."""
        return Cover(np.flatnonzero(np.diff(block.indptr)).astype(np.int64), np.empty(0, np.int64))
