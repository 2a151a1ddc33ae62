"""Area under the ROC curve."""

from __future__ import annotations

import torch


def mean_roc_auc(scores: torch.Tensor, positive: torch.Tensor) -> float | None:
    """Mean over labels of the chance that a positive node scores above a negative one; ties count half.

    `scores [n, C]`, `positive [n, C]` booleans. Labels without a positive or without a negative node are left
    out, as in OGB; where none is left it is undefined: None.
    """
    from scipy.stats import rankdata  # takes as long as torch to import, and few runs need it

    if not len(scores):
        return None
    ranks = torch.from_numpy(rankdata(scores.numpy(), axis=0))
    hits = positive.sum(dim=0).double()
    misses = len(scores) - hits
    above = (ranks * positive).sum(dim=0) - hits * (hits + 1) / 2
    counted = (hits > 0) & (misses > 0)
    return float((above[counted] / (hits * misses)[counted]).mean()) if bool(counted.any()) else None
