"""Dropout whose mask is a function of the node, not of the rank that owns it.

Whether an entry is dropped depends on (seed, epoch, step, layer, the user's node id, column) through a hash,
and on nothing else. So p ranks drop exactly what one process drops, the owner of a row and a receiver that
holds a copy agree on its mask without a message, and a resumed run needs no generator state.

The hash is that of `sancus.kernels.masks` over a row key and a column key; row keys are SplitMix64 of the
other values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sancus.kernels import masks
from sancus.kernels.hashing import MASK64, signed, splitmix, splitmix_scalar
from sancus.kernels.matrix import SparseMatrix, with_transpose


@dataclass(frozen=True)
class DropoutKey:
    """What a mask depends on, besides node and column."""

    seed: int
    epoch: int
    layer: int
    step: int = 0  # of the updates inside an epoch

    def mixed(self) -> int:
        """One signed 64-bit number for all of them; step 0, the only one of a full batch, leaves no trace."""
        state = 0
        for value in (self.seed, self.epoch, self.layer, *((self.step,) if self.step else ())):
            state = splitmix_scalar((state ^ value) & MASK64)
        return signed(state)


def drop_dense(h: torch.Tensor, share: float, nodes: torch.Tensor, key: DropoutKey) -> torch.Tensor:
    """`h [n, f]` with a `share` of its entries zeroed and the others scaled by `1 / (1 - share)`."""
    columns = torch.arange(h.shape[1], device=h.device)
    return masks.drop(h, (_row_keys(nodes, key), _column_keys(columns)), share)


def drop_transform(
    h: torch.Tensor, share: float, nodes: torch.Tensor, key: DropoutKey, weight: torch.Tensor
) -> torch.Tensor:
    """`drop_dense(h) @ weight [n, f_out]`, without a dropped copy of `h`."""
    columns = torch.arange(h.shape[1], device=h.device)
    return masks.drop_product(h, (_row_keys(nodes, key), _column_keys(columns)), share, weight)


def drop_sparse(x: SparseMatrix, share: float, nodes: torch.Tensor, key: DropoutKey) -> SparseMatrix:
    """The same for stored entries: equal to `drop_dense` of the dense matrix."""
    columns = torch.arange(x.shape[1], device=x.csr.value.device)
    rows, columns = _row_keys(nodes, key), _column_keys(columns)
    flipped = masks.drop_entries(x.transposed, (columns, rows), share)  # the hash takes both keys alike
    return with_transpose(masks.drop_entries(x, (rows, columns), share), flipped, x.kernel)


def draw_nodes(nodes: torch.Tensor, share: float, key: DropoutKey) -> torch.Tensor:
    """`[n]` bool: a `share` of the nodes, the same ones wherever a node's copy is."""
    if share >= 1.0:
        return torch.ones_like(nodes, dtype=torch.bool)
    noise = masks.noise(_row_keys(nodes, key), _column_keys(torch.zeros_like(nodes)))
    return noise < masks.bucket(share)


def edge_mask(
    targets: torch.Tensor, sources: torch.Tensor, heads: int, share: float, key: DropoutKey
) -> masks.EdgeMask:
    """The mask of edges from `sources [n]` to `targets [m]`; other than those of any row."""
    apart = replace(key, layer=-2 - key.layer)
    columns = sources[:, None] * heads + torch.arange(heads, device=sources.device)
    return masks.EdgeMask(_row_keys(targets, apart), _column_keys(columns), share)


def _row_keys(nodes: torch.Tensor, key: DropoutKey) -> torch.Tensor:
    return (splitmix(nodes ^ key.mixed()) >> 16).to(torch.int32)


def _column_keys(columns: torch.Tensor) -> torch.Tensor:
    return (splitmix(columns.to(torch.int64) + 0x632BE5AB) >> 16).to(torch.int32)
