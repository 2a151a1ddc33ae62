"""SuperGCN, its steps ③ to ⑤ (Fig. 1) written out, against the ranks of preset `supergcn:paper`.

C. Zhuang and others, "Scaling large-scale GNN training to thousands of processors on CPU-based
supercomputers", 2024: label propagation (③; Lemma 3: `H^(l+1) = A H^(l) W^(l)` on `X + Y W_embed`), hybrid
pre-post-aggregation (④; Algorithm 2), two bits a value (⑤; the quantiser of Sylvie's eq. 3-5, to which its
stochastic integer quantisation is equal). Which of the smallest covers is taken, which nodes show their
labels, and the random numbers are the run's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import maximum_bipartite_matching

from sancus.plans.cover import minimum_cover
from tests.helpers.masks import factor
from tests.papers.dense import LEARNING_RATE, Matrices, Problem, assert_equal, make_problem, train_ranks
from tests.papers.quantiser import BACKWARD, FORWARD, random_numbers, through_the_wire

RANKS, EPOCHS, SEED, BITS, RATE = 3, 5, 4, 2, 0.5
LABELS = -1  # in the place of a layer, in the hash of the draw


class RemoteGraph:
    """The cut edges from an owner to a receiver, as a hybrid of pre- and post-aggregation (Algorithm 2)."""

    def __init__(self, problem: Problem, receiver: int, owner: int) -> None:
        self.targets, self.sources = problem.blocks[receiver], problem.blocks[owner]
        edges = problem.a[self.targets][:, self.sources]
        cover = minimum_cover(sp.csr_array(edges.numpy()))
        self.picked, self.summed = torch.from_numpy(cover.columns), torch.from_numpy(cover.rows)
        post = torch.zeros_like(edges)
        post[:, self.picked] = edges[:, self.picked]  # the source is in the cover
        self.post, self.pre = post, edges - post
        assert not self.pre[~np.isin(np.arange(len(edges)), cover.rows)].any(), "each edge is covered"
        pattern = sp.csr_matrix((edges != 0).numpy())
        assert cover.size == int((maximum_bipartite_matching(pattern) >= 0).sum()), "no cover is smaller"

    def messages(self, h: torch.Tensor) -> torch.Tensor:
        """What the owner sends of its rows of `h`: some as they are, then partial results of targets."""
        own = h[self.sources]
        return torch.cat([own[self.picked], (self.pre @ own)[self.summed]])

    def add(self, received: torch.Tensor, out: torch.Tensor) -> None:
        """Post-aggregation at the receiver."""
        rows, sums = received.split([len(self.picked), len(self.summed)])
        out[self.targets] += self.post[:, self.picked] @ rows
        out[self.targets[self.summed]] += sums

    def returns(self, delta: torch.Tensor) -> torch.Tensor:
        """The gradient of every message, which the receiver sends back."""
        mine = delta[self.targets]
        return torch.cat([self.post[:, self.picked].T @ mine, mine[self.summed]])

    def collect(self, received: torch.Tensor, out: torch.Tensor) -> None:
        """The gradients of rows at the owner, from those of its messages."""
        rows, sums = received.split([len(self.picked), len(self.summed)])
        out[self.sources[self.picked]] += rows
        out[self.sources] += self.pre[self.summed].T @ sums


class SuperGcn:
    """All workers in one process."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        pairs = [(i, j) for i in range(RANKS) for j in range(RANKS) if i != j]
        self.remote = {(i, j): RemoteGraph(problem, i, j) for i, j in pairs}
        selected = [factor(SEED, 0, LABELS, node, 0, RATE) == 0.0 for node in range(len(problem.x))]
        self.shown = problem.train & torch.tensor(selected)  # before training begins, once
        self.scored = problem.train & ~self.shown
        self.y = torch.nn.functional.one_hot(problem.labels, 4).double() * self.shown[:, None]

    def aggregate(self, h: torch.Tensor, layer: int, epoch: int) -> torch.Tensor:
        """`A H`: local graphs, and messages in two bits."""
        out = self.local(h)
        for (i, j), remote in self.remote.items():
            messages = remote.messages(h)
            random = random_numbers(messages.shape, SEED, epoch, layer, FORWARD, j, i)
            remote.add(through_the_wire(messages, BITS, random), out)
        return out

    def aggregate_back(self, delta: torch.Tensor, layer: int, epoch: int) -> torch.Tensor:
        """`Aᵀ δ`, the same way back."""
        out = self.local(delta)
        for (i, j), remote in self.remote.items():
            messages = remote.returns(delta)
            random = random_numbers(messages.shape, SEED, epoch, layer, BACKWARD, i, j)
            remote.collect(through_the_wire(messages, BITS, random), out)
        return out

    def local(self, h: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(h)
        for own in self.problem.blocks:
            out[own] = self.problem.a[own][:, own] @ h[own]
        return out

    def train_epoch(self, embedding: torch.Tensor, weights: Matrices, epoch: int) -> tuple[float, Matrices]:
        """The loss over the training nodes that show no label, and the gradients of `W_embed` and all `W`."""
        h = self.problem.x + self.y @ embedding
        aggregated, products = [], []
        for layer, weight in enumerate(weights):
            aggregated.append(self.aggregate(h, layer, epoch))
            products.append(aggregated[-1] @ weight)
            h = torch.relu(products[-1])
        z, labels = products[-1], self.problem.labels
        count = self.problem.train.sum() * (1 - RATE)  # as many as are expected to hide their label
        loss = -(torch.log_softmax(z, dim=1)[self.scored, labels[self.scored]].sum() / count).item()
        truth = torch.nn.functional.one_hot(labels, z.shape[1]).double()
        delta = (torch.softmax(z, dim=1) - truth) * self.scored[:, None] / count
        gradients: Matrices = []
        for layer in reversed(range(len(weights))):
            gradients.insert(0, aggregated[layer].T @ delta)
            back = self.aggregate_back(delta @ weights[layer].T, layer, epoch)
            delta = back * (products[layer - 1] > 0) if layer else back
        return loss, [self.y.T @ delta, *gradients]


def test_ranks_follow_the_paper(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, RANKS)
    ranks = train_ranks(problem, EPOCHS, preset="supergcn:paper", seed=SEED)
    paper, parameters = SuperGcn(problem), ranks.initial
    assert paper.shown.any() and paper.scored.any()
    assert any(len(remote.picked) for remote in paper.remote.values())
    assert any(len(remote.summed) for remote in paper.remote.values()), "some messages are sums"
    for epoch in range(EPOCHS):
        embedding, *weights = parameters
        loss, gradients = paper.train_epoch(embedding, weights, epoch)
        assert_equal(ranks.losses[epoch], loss, f"loss of epoch {epoch}")
        assert_equal(ranks.gradients[epoch], gradients, f"gradients of epoch {epoch}")
        parameters = [w - LEARNING_RATE * g for w, g in zip(parameters, gradients, strict=True)]
        assert_equal(ranks.weights[epoch], parameters, f"parameters after epoch {epoch}")
