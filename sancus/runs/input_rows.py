"""The input of a model: features and labels of a shard's own rows, on the run's device."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from sancus.graphs.shards import Shard
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Workbench


def own_features(shard: Shard, bench: Workbench, *, normalise: bool) -> torch.Tensor | SparseMatrix:
    """Own rows of the features; `normalise` divides a row by its sum, where that is above 0."""
    x = shard.features
    sums = np.asarray(x.sum(axis=1, dtype=np.float64)).ravel() if normalise else np.ones(x.shape[0])
    scale = 1.0 / np.where(sums > 0, sums, 1.0)
    if sp.issparse(x):
        return bench.matrix(sp.csr_array(sp.diags_array(scale) @ x) if normalise else x)
    dense = torch.from_numpy(np.array(x)).to(bench.device, bench.dtype)
    shard.release("features")
    return dense * torch.from_numpy(scale).to(dense)[:, None] if normalise else dense


def shown_labels(shard: Shard, bench: Workbench) -> SparseMatrix:
    """Labels of the own training rows `[n_i, C]`, a 1 for each; other rows are empty."""
    rows = np.flatnonzero(shard.mask("train"))
    labels = np.array(shard.labels)[rows]
    shape = (len(shard.nodes), shard.manifest["graph"]["classes"])
    where, columns = np.nonzero(labels > 0.5) if labels.ndim == 2 else (np.arange(len(rows)), labels)
    return bench.matrix(
        sp.csr_array((np.ones(len(columns), np.float32), (rows[where], columns)), shape=shape)
    )
