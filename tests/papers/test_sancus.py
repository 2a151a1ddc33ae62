"""SANCUS and what it is compared with, line by line: CAGNET, SCS-E, SCS-A, SCS-H, SkipG; and PipeGCN.

Equations 2-6 and Algorithms 3-6 of SANCUS, Algorithm 1 of PipeGCN, in dense matrices of p simulated workers
with caches of their own. Where a paper leaves something open, it says here how it is read (docs/papers.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.staleness.base import Replicated, View
from tests.helpers.threads import Board, ThreadTransport, open_own, results, run_threads, thread_trainer
from tests.papers.dense import (
    LEARNING_RATE,
    Matrices,
    Problem,
    Ranks,
    assert_equal,
    make_problem,
    train_ranks,
)

WORKERS, EPOCHS = 3, 6
ACTIVE, STALE = True, False


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return make_problem(tmp_path_factory.mktemp("shards"), WORKERS)


@dataclass
class Cache:
    """What the workers hold of the blocks of one kind, `H^(ℓ)` or `δ^(ℓ)` of one layer: `H̃_j` and `Ver(j)`.

    All workers get a broadcast, so one cache stands for the caches of all.
    """

    block: dict[int, torch.Tensor] = field(default_factory=dict)
    version: dict[int, int] = field(default_factory=dict)


Check = Callable[[int, int, Cache, torch.Tensor], bool]  # epoch, worker j, its cache, its block now: F(j)


def always(epoch: int, j: int, cache: Cache, block: torch.Tensor) -> bool:
    """CAGNET: every worker is ACTIVE."""
    return ACTIVE


def epoch_fixed(bound: int) -> Check:
    """Algorithm 4: `Ver − Ver(j) > ε_E`."""

    def stale(epoch: int, j: int, cache: Cache, block: torch.Tensor) -> bool:
        return ACTIVE if epoch - cache.version[j] > bound else STALE

    return stale


def epoch_adaptive(bound: int) -> Check:
    """Algorithm 5: `Ver − Ver_i(j) > ε_A` on any worker `i` that has edges to `j`, here on all of them.

    How workers come to hold versions of different age, as in Figure 14(b), the paper does not say. Ours start
    together, and worker `j` broadcasts once out of turn, `j mod (ε_A + 1)` epochs after the start.
    """

    def stale(epoch: int, j: int, cache: Cache, block: torch.Tensor) -> bool:
        if epoch == j % (bound + 1) and cache.version[j] == 0:
            return ACTIVE
        return ACTIVE if epoch - cache.version[j] > bound else STALE

    return stale


def variation_gap(bound: float) -> Check:
    """Algorithm 6: `‖H_j − H̃_j‖ > ε_H`; the norm, which is not given, is the mean over all entries."""

    def stale(epoch: int, j: int, cache: Cache, block: torch.Tensor) -> bool:
        return ACTIVE if (block - cache.block[j]).abs().mean().item() > bound else STALE

    return stale


@dataclass
class Sancus:
    """Algorithm 3: p workers, each with its rows of `Â` and `H`, and all of `W`."""

    problem: Problem
    forward_check: Check = always
    backward_check: Check = always
    threshold: float | None = None
    caches: dict[tuple[str, int], Cache] = field(default_factory=dict)
    flags: dict[tuple[int, int, int, int], bool] = field(default_factory=dict)  # epoch, layer, side, worker

    def multiply(self, epoch: int, kind: str, layer: int, blocks: Matrices) -> Matrices:
        """Lines 5-14: `T_i = Σ_j Â_ij H_j`, with `H̃_j` of the cache where `F(j)` is STALE.

        It is the *other* workers that reuse a stale block (§4.3.2); a worker's own rows are its latest.
        """
        cache = self.caches.setdefault((kind, layer), Cache())
        check = self.forward_check if kind == "H" else self.backward_check
        for j, block in enumerate(blocks):
            flag = check(epoch, j, cache, block) if j in cache.block else ACTIVE
            if flag == ACTIVE:  # BROADCAST and CACHE
                cache.block[j], cache.version[j] = block, epoch
            self.flags[epoch, layer, int(kind != "H"), j] = flag
        sums = []
        for i, own in enumerate(self.problem.blocks):
            t = torch.zeros(len(own), blocks[0].shape[1]).double()
            for j, other in enumerate(self.problem.blocks):
                t += self.problem.a[own][:, other] @ (blocks[j] if j == i else cache.block[j])
            sums.append(t)
        return sums

    def epoch(self, epoch: int, weights: Matrices) -> tuple[float, Matrices]:
        """The loss and `∇_W L` of every layer."""
        problem, depth = self.problem, len(weights)
        h: list[Matrices] = [[problem.x[block] for block in problem.blocks]]  # H^(0) = X
        z: list[Matrices] = []
        for layer, w in enumerate(weights):
            t = self.multiply(epoch, "H", layer, h[layer])
            z.append([t_i @ w for t_i in t])  # eq. 2
            h.append([z_i.clamp(min=0.0) for z_i in z[layer]])  # eq. 3
        logits = problem.whole(z[-1])
        delta = problem.split(problem.output_delta(logits))
        gradients: Matrices = [torch.empty(0)] * depth
        for layer in reversed(range(depth)):
            delta = [self.clip(delta_i) for delta_i in delta]
            g = self.multiply(epoch, "δ", layer, delta)  # δ^(ℓ) Â; Â is symmetric
            shares = [h_i.T @ g_i for h_i, g_i in zip(h[layer], g, strict=True)]  # eq. 5
            gradients[layer] = torch.stack(shares).sum(dim=0)  # AllReduce
            if layer:  # eq. 4
                delta = [g_i @ weights[layer].T * (z_i > 0) for g_i, z_i in zip(g, z[layer - 1], strict=True)]
        return problem.loss(logits), gradients

    def clip(self, delta: torch.Tensor) -> torch.Tensor:
        """GRADIENT_CLIP: the L2 norm of a worker's rows is held to `th_i = P^(1/2) th` (§4.3.2)."""
        if self.threshold is None:
            return delta
        limit = math.sqrt(len(self.problem.blocks)) * self.threshold
        length = math.sqrt(float((delta**2).sum()))
        return delta if length <= limit else delta * (limit / length)


def assert_epochs(ranks: Ranks, epoch_of: Callable[[int, Matrices], tuple[float, Matrices]]) -> None:
    """Every epoch's loss, gradients, and weights after `W ← W − η ∇_W L` (SANCUS eq. 6)."""
    weights = ranks.initial
    for epoch, found in enumerate(ranks.losses):
        loss, gradients = epoch_of(epoch, weights)
        assert_equal(found, loss, f"loss of epoch {epoch}")
        assert_equal(ranks.gradients[epoch], gradients, f"gradients of epoch {epoch}")
        weights = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
        assert_equal(ranks.weights[epoch], weights, f"weights after epoch {epoch}")


def assert_flags(ranks: Ranks, flags: dict[tuple[int, int, int, int], bool], *, skips: bool) -> None:
    for place, flag in flags.items():
        assert ranks.decisions[place] == int(flag), place
    assert ranks.decisions.size == len(flags)
    later = [flag for (epoch, *_), flag in flags.items() if epoch]
    assert any(later) and (not all(later)) == skips, "workers are ACTIVE and STALE after the first epoch"


CASES: dict[str, tuple[Check, Check]] = {
    "cagnet": (always, always),
    "sancus-e:1": (epoch_fixed(1), always),
    "sancus-e:3": (epoch_fixed(3), always),
    "sancus-a:1": (epoch_adaptive(1), always),
    "sancus-a:2": (epoch_adaptive(2), always),
    "sancus-h:1": (variation_gap(0.01), always),
    "sancus-h:3": (variation_gap(0.03), always),
    "skipg:1": (always, epoch_fixed(1)),
    "skipg:2": (always, epoch_fixed(2)),
}


@pytest.mark.parametrize("threshold", [None, 0.02], ids=["", "clip"])
@pytest.mark.parametrize("preset", CASES)
def test_sancus_algorithm_3(problem: Problem, preset: str, threshold: float | None) -> None:
    forward, backward = CASES[preset]
    ranks = train_ranks(problem, EPOCHS, preset=preset, clip=threshold)
    paper = Sancus(problem, forward, backward, threshold)
    assert_epochs(ranks, paper.epoch)
    assert_flags(ranks, paper.flags, skips=preset != "cagnet")


def test_clipping_changes_something(problem: Problem) -> None:
    plain, clipped = (train_ranks(problem, 2, preset="cagnet", clip=clip) for clip in (None, 0.02))
    assert plain.losses[0] == clipped.losses[0] and plain.losses[1] != clipped.losses[1]


# Figure 2


@dataclass(frozen=True)
class SkipsTheThird(Replicated):
    """Figure 2: in the second layer `H_3` is not broadcast."""

    max_age: ClassVar[int] = 1

    def decide(self, view: View) -> bool:
        return not (view.layer == 1 and view.owner == 2)


def test_figure_2_needs_seven_broadcasts(tmp_path: Path) -> None:
    """4 GPUs, 2 layers: "in total, only 4 + 3 = 7 broadcasts are needed", and 8 where no one skips."""
    gpus = 4
    problem = make_problem(tmp_path, gpus)
    owners: list[int] = []

    class Counting(ThreadTransport):
        def broadcast(self, tensor: torch.Tensor, owner: int, *, background: bool) -> Any:
            if self.rank == 0:
                owners.append(owner)
            return super().broadcast(tensor, owner, background=background)

    def make_group(rank: int, size: int, board: Board) -> Group:
        return Group(Counting(rank, size, board))

    def run(group: Group) -> list[list[int]]:
        policy = "tests.papers.test_sancus:SkipsTheThird"
        config = make_config(
            preset="cagnet", staleness=policy, kernel="torch", broadcast="library", dropout=0.0
        )
        trainer, rounds = thread_trainer(config, open_own(problem.folder, group), group), []
        for epoch in range(2):
            trainer.exchange.begin_epoch(epoch)
            group.all_gather(torch.zeros(1))
            if group.rank == 0:
                owners.clear()
            trainer.model(trainer.exchange.input, trainer.exchange)
            rounds.append(list(owners))
        return rounds

    first, second = results(run_threads(gpus, run, make_group))[0]
    assert first == [0, 1, 2, 3, 0, 1, 2, 3], "nothing is cached yet"
    assert second == [0, 1, 2, 3, 0, 1, 3] and len(second) == 4 + 3


# PipeGCN


@dataclass
class PipeGCN:
    """Algorithm 1 of PipeGCN: `P` is `Â`, `V_i` are the rows of partition `i`, its boundary those of others.

    What a partition's threads receive during an iteration, the next one uses. The paper starts with boundary
    rows of zero and without gradients of others; ours waits for both in the first iteration.
    """

    problem: Problem
    features: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # B^(ℓ): layer, owner
    feedback: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)  # C^(ℓ): layer, to, from

    def epoch(self, epoch: int, weights: Matrices) -> tuple[float, Matrices]:
        """One iteration: the loss, and the weight gradients summed over partitions."""
        problem, parts = self.problem, range(len(self.problem.blocks))
        p, v = problem.a, problem.blocks
        h: list[Matrices] = [problem.split(problem.x)]
        ph: list[Matrices] = []  # P_i H^(ℓ-1), of inner rows and boundary rows
        z: list[Matrices] = []
        for layer, w in enumerate(weights):
            ph.append([])
            for i in parts:
                boundary = [h[layer][j] if not epoch else self.features[layer, j] for j in parts]
                boundary[i] = h[layer][i]
                ph[layer].append(torch.stack([p[v[i]][:, v[j]] @ boundary[j] for j in parts]).sum(dim=0))
            self.features |= {(layer, j): h[layer][j] for j in parts}  # on their way
            z.append([rows @ w for rows in ph[layer]])
            h.append([rows.clamp(min=0.0) for rows in z[layer]])
        logits = problem.whole(z[-1])
        delta = problem.split(problem.output_delta(logits))  # J^(L) ∘ σ'
        gradients: Matrices = [torch.empty(0)] * len(weights)
        for layer in reversed(range(len(weights))):
            gradients[layer] = torch.stack([ph[layer][i].T @ delta[i] for i in parts]).sum(dim=0)
            if layer:
                j_rows = self.feature_gradients(epoch, layer, delta, weights[layer])
                delta = [j_rows[i] * (z[layer - 1][i] > 0) for i in parts]
        return problem.loss(logits), gradients

    def feature_gradients(self, epoch: int, layer: int, delta: Matrices, w: torch.Tensor) -> Matrices:
        """`J^(ℓ-1)` of the inner rows: the own part, and what others sent of it an iteration ago."""
        p, v, parts = self.problem.a, self.problem.blocks, range(len(self.problem.blocks))
        sums = [p[v[i]][:, v[i]].T @ delta[i] @ w.T for i in parts]
        for i in parts:
            for j in parts:
                if j != i:
                    mine = p[v[j]][:, v[i]].T @ delta[j] @ w.T  # of the rows of i, on partition j
                    sums[i] = sums[i] + (self.feedback[layer, i, j] if epoch else mine)
                    self.feedback[layer, i, j] = mine  # on its way
        return sums


@pytest.mark.parametrize(("preset", "widths"), [("pipegcn:paper", (6, 3)), ("pipegcn", (2, 3))])
def test_pipegcn_algorithm_1(problem: Problem, preset: str, widths: tuple[int, ...]) -> None:
    """As published, and with our savings, which leave a model alone whose layers widen after the first."""
    ranks = train_ranks(problem, EPOCHS, widths, preset=preset)
    assert_epochs(ranks, PipeGCN(problem).epoch)
    assert (ranks.decisions[1:, 1:] == 2).all(), "rows travel while the epoch goes on"
    fresh = train_ranks(problem, EPOCHS, widths, preset="exact", plan="halo")
    assert not np.allclose(ranks.losses[2:], fresh.losses[2:], rtol=1e-6)
