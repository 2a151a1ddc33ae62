"""Sylvie, Algorithms 1 and 2, line by line, against the ranks of presets `sylvie-s` and `sylvie-a`.

M. Zhang and others, "Boosting distributed full-graph GNN training with asynchronous one-bit communication",
2023. Row sets are the paper's: `S_m` are the nodes of `n` that partition `m` needs, `R_m` those of `m` that
`n` needs. Numbers of layers are ours, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.papers.dense import LEARNING_RATE, Matrices, Problem, assert_equal, make_problem, train_ranks
from tests.papers.quantiser import BACKWARD, FORWARD, random_numbers, through_the_wire

RANKS, EPOCHS, SEED, BITS = 3, 7, 4, 1
Pair = tuple[int, int, int, int]  # layer, direction, owner, receiver


@dataclass
class Sylvie:
    """All partitions in one process, with what each holds of the others."""

    problem: Problem
    weights: Matrices
    pipelined: bool = False  # Sylvie-A
    interval: int = 0  # ε_s of the Bounded Staleness Adaptor; 0: it never synchronises
    epoch: int = 0
    underway: dict[Pair, torch.Tensor] = field(default_factory=dict)  # what the next epoch will find

    def communicate(self, rows: torch.Tensor, layer: int, direction: int, n: int, m: int) -> torch.Tensor:
        """`n` quantises `rows` and sends them to `m`: what `m` goes on with after lines 10-12.

        Sylvie-S waits for it. Sylvie-A goes on with what was sent in the epoch before (§3.3), but for its
        first epoch, when there is nothing, and one epoch in ε_s.
        """
        random = random_numbers(rows.shape, SEED, self.epoch, layer, direction, n, m)
        pair = (layer, direction, n, m)
        sent = through_the_wire(rows, BITS, random)
        synchronous = not self.pipelined or self.epoch == 0
        synchronous = synchronous or bool(self.interval and self.epoch % self.interval == 0)
        seen = sent if synchronous else self.underway[pair]
        self.underway[pair] = sent
        return seen

    def train_epoch(self) -> tuple[float, Matrices]:
        """One turn of the loops over `t`: the loss, and the gradients `G^(l)` that are added up."""
        problem, blocks = self.problem, self.problem.blocks
        h, concatenated, products = problem.x, [], []
        for layer, weight in enumerate(self.weights):
            seen = []  # H̃_n of every partition
            for n, own in enumerate(blocks):
                known = torch.zeros_like(h)
                known[own] = h[own]
                for m in self.others(n):
                    r_m = problem.needed(n, m)
                    known[r_m] = self.communicate(h[r_m], layer, FORWARD, m, n)
                seen.append(known)
            concatenated.append(seen)
            z = torch.zeros(len(h), weight.shape[1], dtype=h.dtype)
            for n, own in enumerate(blocks):
                z[own] = problem.a[own] @ seen[n] @ weight  # line 15
            products.append(z)
            h = torch.relu(z)
        loss = problem.loss(products[-1])
        delta = problem.output_delta(products[-1])  # J^(L): the last layer has no σ
        gradients: Matrices = [torch.zeros_like(weight) for weight in self.weights]
        for layer in reversed(range(len(self.weights))):
            weight = self.weights[layer]
            for n, own in enumerate(blocks):
                gradients[layer] += (problem.a[own] @ concatenated[layer][n]).T @ delta[own]  # line 7
            if layer == 0:
                break  # line 8
            j = torch.zeros_like(products[layer - 1])
            for n, own in enumerate(blocks):
                mine = problem.a[own].T @ delta[own] @ weight.T  # line 9: of own and HALO nodes
                j[own] += mine[own]
                for m in self.others(n):
                    r_m = problem.needed(n, m)
                    j[r_m] += self.communicate(mine[r_m], layer, BACKWARD, n, m)  # lines 10-13
            delta = j * (products[layer - 1] > 0)
        return loss, gradients

    def others(self, n: int) -> list[int]:
        return [m for m in range(len(self.problem.blocks)) if m != n]

    def update(self, gradients: Matrices) -> None:
        """`W_t = W_{t-1} − η G`."""
        self.weights = [w - LEARNING_RATE * g for w, g in zip(self.weights, gradients, strict=True)]
        self.epoch += 1


@pytest.mark.parametrize(
    "preset, pipelined, interval",
    [
        ("sylvie-s:paper", False, 0),
        ("sylvie-a:paper", True, 0),
        ("sylvie-a:2:paper", True, 2),
        ("sylvie-a:5:paper", True, 5),
    ],
)
def test_ranks_follow_algorithms_1_and_2(preset: str, pipelined: bool, interval: int, tmp_path: Path) -> None:
    problem = make_problem(tmp_path, RANKS)
    ranks = train_ranks(problem, EPOCHS, preset=preset, seed=SEED)
    paper = Sylvie(problem, ranks.initial, pipelined, interval)
    for epoch in range(EPOCHS):
        loss, gradients = paper.train_epoch()
        assert_equal(ranks.losses[epoch], loss, f"loss of epoch {epoch}")
        assert_equal(ranks.gradients[epoch], gradients, f"gradients of epoch {epoch}")
        paper.update(gradients)
        assert_equal(ranks.weights[epoch], paper.weights, f"weights after epoch {epoch}")


def test_savings_change_what_is_rounded(tmp_path: Path) -> None:
    """Without `:paper` the input crosses once, in full precision, and narrower rows are rounded."""
    problem = make_problem(tmp_path, RANKS)
    ours, paper = (
        train_ranks(problem, 2, preset=preset, seed=SEED) for preset in ("sylvie-s", "sylvie-s:paper")
    )
    assert ours.losses[0] != paper.losses[0]
    exact, plain = (
        train_ranks(problem, 2, preset=preset, seed=SEED, codec="fp32")
        for preset in ("sylvie-s", "sylvie-s:paper")
    )
    assert_equal(exact.losses, plain.losses)
    assert_equal(exact.gradients, plain.gradients)
