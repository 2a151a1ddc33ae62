"""What edges are told apart from, and the loss of telling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from sancus.training.edge_split import drawn_pairs
from sancus.training.link_settings import LinkSettings


@dataclass(frozen=True)
class PairLoss:
    """The mean binary cross entropy of edges and of the pairs that are drawn for them."""

    nodes: int  # of the graph
    directed: bool
    seed: int
    settings: LinkSettings

    def asked(self, edges: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pairs of ids `[k, 2]` of the loss of some edges, and whether each is one `[k]`."""
        drawn = drawn_pairs(edges, self.settings.negatives, self.nodes, self.seed, epoch).flatten(0, 1)
        truth = torch.zeros(len(edges) + len(drawn), dtype=torch.float64)
        truth[: len(edges)] = 1.0
        return torch.cat([edges, drawn]), truth

    def share_of(self, scores: torch.Tensor, truth: torch.Tensor, edges: float) -> torch.Tensor:
        """The share that pairs have in the mean loss of so many edges and the pairs drawn for them."""
        total = F.binary_cross_entropy_with_logits(scores, truth.to(scores.dtype), reduction="sum")
        return total / (edges * (1 + self.settings.negatives))
