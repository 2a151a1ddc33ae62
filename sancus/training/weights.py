"""A checksum of a model: all ranks must hold the same weights, bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import xxhash
from torch import nn

from sancus.comm.errors import DisagreementError


def checksum(model: nn.Module) -> int:
    """64 bits of all parameters and buffers."""
    digest = xxhash.xxh3_64()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().numpy().view(np.uint8).data)
    return digest.intdigest()


def compare(checksums: Mapping[int, int], epoch: int) -> None:
    """Name a rank whose weights are not those of most ranks (of the first, where there is no majority)."""
    (usual, count), *_ = Counter(checksums.values()).most_common(1)
    if count == len(checksums):
        return
    usual = usual if 2 * count > len(checksums) else checksums[min(checksums)]
    odd = [rank for rank, own in checksums.items() if own != usual]
    same = next(rank for rank, own in checksums.items() if own == usual)
    raise DisagreementError(
        f"rank {odd[0]} has other weights than rank {same} after epoch {epoch}"
        f"{f' (and {len(odd) - 1} more ranks)' if len(odd) > 1 else ''}; "
        "look at what a model or a plug-in does differently on a rank, and at that machine's memory"
    )
