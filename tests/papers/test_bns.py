"""BNS-GCN, Algorithm 1, line by line, against the ranks of preset `bns:p:paper`.

C. Wan and others, "BNS-GCN: efficient full-graph training of graph convolutional networks with
partition-parallelism and random boundary node sampling", MLSys 2022. `V_i` are the inner nodes of partition
`i`, `B_i` its boundary nodes, `U_i` those that it draws in an epoch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.draws import drawn
from tests.papers.dense import LEARNING_RATE, Matrices, Problem, assert_equal, make_problem, train_ranks

RANKS, EPOCHS, SEED = 3, 5, 6


def draw_boundary(problem: Problem, i: int, epoch: int, p: float) -> list[int]:
    """`U_i`: every node of `B_i` with probability `p`; the random numbers are the run's."""
    number = {node: row for row, node in enumerate(torch.cat(problem.blocks).tolist())}
    boundary = torch.cat([problem.needed(i, j) for j in range(RANKS) if j != i]).tolist()
    return [node for node in boundary if drawn(SEED, epoch, i, number[node], p)]


def train_epoch(
    problem: Problem, weights: Matrices, epoch: int, p: float, *, exact_input: bool
) -> tuple[float, Matrices]:
    """One epoch of all partitions; `exact_input`: the first layer has all rows, as where `Â X` is kept."""
    draws = [draw_boundary(problem, i, epoch, p) for i in range(RANKS)]
    # What a partition multiplies by: inner nodes as they are, drawn ones scaled by 1/p, and no others.
    induced = []
    for own, u in zip(problem.blocks, draws, strict=True):
        a = torch.zeros(len(own), len(problem.a), dtype=torch.float64)
        a[:, own] = problem.a[own][:, own]
        a[:, u] = problem.a[own][:, u] / p
        induced.append(a)
    whole = [problem.a[own] for own in problem.blocks]
    h, inputs, products = problem.x, [], []
    for layer, weight in enumerate(weights):
        inputs.append(h)
        matrices = whole if exact_input and layer == 0 else induced
        z = torch.zeros(len(h), weight.shape[1], dtype=h.dtype)
        for own, a in zip(problem.blocks, matrices, strict=True):
            z[own] = a @ h @ weight  # H_i^(l) from H^(l-1) of V_i and U_i
        products.append(z)
        h = torch.relu(z)
    delta = problem.output_delta(products[-1])
    gradients = [torch.zeros_like(weight) for weight in weights]
    for layer in reversed(range(len(weights))):
        matrices = whole if exact_input and layer == 0 else induced
        back = torch.zeros_like(inputs[layer])
        for own, a in zip(problem.blocks, matrices, strict=True):
            gradients[layer] += (a @ inputs[layer]).T @ delta[own]
            back += a.T @ delta[own] @ weights[layer].T  # of drawn nodes it goes to their owners
        if layer:
            delta = back * (products[layer - 1] > 0)
    return problem.loss(products[-1]), gradients


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("form, exact_input", [(":paper", False), ("", True)], ids=["paper", "savings"])
def test_ranks_follow_algorithm_1(p: float, form: str, exact_input: bool, tmp_path: Path) -> None:
    problem = make_problem(tmp_path, RANKS)
    ranks = train_ranks(problem, EPOCHS, preset=f"bns:{p:g}{form}", seed=SEED)
    weights = ranks.initial
    for epoch in range(EPOCHS):
        loss, gradients = train_epoch(problem, weights, epoch, p, exact_input=exact_input)
        assert_equal(ranks.losses[epoch], loss, f"loss of epoch {epoch}")
        assert_equal(ranks.gradients[epoch], gradients, f"gradients of epoch {epoch}")
        weights = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
        assert_equal(ranks.weights[epoch], weights, f"weights after epoch {epoch}")


def test_every_partition_draws_for_itself_and_anew_in_every_epoch(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, RANKS, nodes=60)
    draws = [[set(draw_boundary(problem, i, epoch, 0.5)) for i in range(RANKS)] for epoch in range(4)]
    assert len({frozenset(draw) for of_epoch in draws for draw in of_epoch}) == 4 * RANKS
