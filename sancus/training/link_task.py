"""Link prediction: which pairs of nodes have an edge (ByteGNN §5.2, its unsupervised DAG).

A pair's score is the product of its two embeddings, which are what the model returns. The loss is the mean
binary cross entropy of the training edges and of pairs that are drawn for them, over all ranks. A rank looks
at the edges of its own rows, and borrows the other ends' embeddings. Scores compare every held-out edge with
pairs drawn for it, the same in every epoch: the area under the ROC curve of all, or the mean reciprocal rank
of an edge among its own, ties counted as half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.exchange.borrowed import Borrowed, make_loan
from sancus.kernels.pairs import PairScores
from sancus.training.auc import mean_roc_auc
from sancus.training.edge_split import SCORED, EdgeSplit, drawn_pairs
from sancus.training.pair_loss import PairLoss
from sancus.training.task import SPLITS, Gatherer, Split

if TYPE_CHECKING:
    from sancus.training.asker import Ask, Asker

LINK_METRICS = {"auto": "ROC-AUC", "roc-auc": "ROC-AUC", "mrr": "MRR"}


@dataclass(frozen=True)
class LinkTask:
    """Tell edges from other pairs; the edges of the own rows, with the global number of training edges."""

    split: EdgeSplit
    train_count: float  # edges of all ranks
    group: Group
    pairs: PairLoss
    layer: int  # in the bill: that of the embeddings
    metric: str = LINK_METRICS["auto"]

    def rows_needed(self, split: Split) -> torch.Tensor:
        """The own rows that are an end of an edge of own rows."""
        ends = self.split.edges[split].unique()
        here = ends[self.split.places.owner[ends] == self.group.rank]
        return self.split.places.row[here].sort().values

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's share of the mean over training edges and drawn pairs; `logits [n_i, d]`."""
        pairs, truth = self.pairs.asked(self.split.edges["train"], self.group.clock.epoch)
        scores = self._scores(logits, pairs, self.layer)
        return self.pairs.share_of(scores, truth, self.train_count)

    def score(self, logits: torch.Tensor, gatherer: Gatherer | None = None) -> torch.Tensor:
        """`[3, 2]` numerator and denominator of train, val and test, float64; they add up over ranks."""
        return torch.stack([self._score(logits, self._scored(split), gatherer) for split in SPLITS])

    def restricted(
        self, rows: torch.Tensor, share: float = 1.0, weight: torch.Tensor | None = None
    ) -> LinkTask:
        """Refused: an edge has two rows."""
        raise UserError("--task link cannot be asked of some rows; leave --schedule out")

    def predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """The embeddings `[n, d]` themselves: the score of a pair is the product of two."""
        return logits

    def in_batches(self, ask: Ask) -> Asker:
        """Batches of edges."""
        from sancus.training.link_asker import LinkAsker

        return LinkAsker(self.pairs, ask)

    def _scored(self, split: Split) -> torch.Tensor:
        return self.split.shown if split == "train" else self.split.edges[split]

    def _scores(self, own: torch.Tensor, pairs: torch.Tensor, layer: int | None) -> torch.Tensor:
        """The score of every pair `[k]`, from the own rows `[n_i, d]`; every rank calls it."""
        places, group = self.split.places, self.group
        ids, at = torch.unique(pairs, return_inverse=True)
        owner, row = places.owner[ids], places.row[ids]
        if group.size == 1:
            scores: torch.Tensor = PairScores.apply(own, row[at])
            return scores
        others = torch.nonzero(owner != group.rank).flatten()
        others = others[torch.argsort(owner[others], stable=True)]
        loan = make_loan(group, owner[others], row[others], layer)
        place = row.clone()
        place[others] = torch.arange(len(others)) + len(own)
        joined = torch.cat([own, Borrowed.apply(own, loan)])
        scores = PairScores.apply(joined, place[at])
        return scores

    def _score(self, own: torch.Tensor, edges: torch.Tensor, gatherer: Gatherer | None) -> torch.Tensor:
        rivals, nodes, seed = self.pairs.settings.rivals, self.pairs.nodes, self.pairs.seed
        drawn = drawn_pairs(edges, rivals, nodes, seed, SCORED).flatten(0, 1)
        with torch.no_grad():
            scores = self._scores(own, torch.cat([edges, drawn]), None).double()
        mine, others = scores[: len(edges), None], scores[len(edges) :].view(-1, rivals)
        if self.metric == LINK_METRICS["mrr"]:
            rank = 1 + (others > mine).sum(dim=1) + 0.5 * (others == mine).sum(dim=1)
            return torch.stack([(1 / rank).sum(), torch.tensor(float(len(edges)), dtype=torch.float64)])
        table = torch.cat([mine, others], dim=1)
        joined = table if gatherer is None else gatherer.join(table)
        if joined is None:
            return torch.zeros(2, dtype=torch.float64)
        truth = torch.zeros_like(joined, dtype=torch.bool)
        truth[:, 0] = True
        auc = mean_roc_auc(joined.reshape(-1, 1), truth.reshape(-1, 1))
        return torch.tensor([0.0, 0.0] if auc is None else [auc, 1.0], dtype=torch.float64)
