"""Legs as programs: what a program may be, and one with a `Reduce`: CAGNET's 1.5D, made of the same parts.

Four ranks hold two copies of a graph in two parts. In each copy, half of the owners send, and only their
blocks are multiplied; a sum over the copies makes the product whole.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sancus.codecs.full import FullPrecision
from sancus.comm.group import Group
from sancus.comm.ledger import DIRECTIONS
from sancus.exchange.aggregate import aggregate
from sancus.exchange.crossing import Crossing, CrossingSettings
from sancus.exchange.legs import needed
from sancus.exchange.mover import Mover
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.torch_csr import TorchKernel
from sancus.plans.base import PARTS, Add, Instruction, Leg, Move, Reduce, Workbench
from sancus.plans.maps import Identity, Pick, Product, RowMap
from sancus.staleness.always import Always
from tests.helpers.threads import Board, results, run_threads, thread_group

CPU = torch.device("cpu")
BENCH = Workbench(TorchKernel(), torch.float64, CPU)
COPIES, OFFSETS = 2, (0, 4, 9)
PART_COUNT = len(OFFSETS) - 1


def dense_matrix() -> np.ndarray:
    rng = np.random.default_rng(3)
    return (rng.random((OFFSETS[-1],) * 2) < 0.5) * rng.standard_normal((OFFSETS[-1],) * 2)


def rows_of(part: int) -> slice:
    return slice(OFFSETS[part], OFFSETS[part + 1])


class HalfTheOwners:
    """A plan of one copy: owners that another copy serves send nothing here."""

    picks_rows = False

    def __init__(self, part: int, copy: int, matrix: np.ndarray) -> None:
        self.forward = self._leg(part, copy, matrix)
        self.backward = self._leg(part, copy, matrix.T)

    def _leg(self, part: int, copy: int, matrix: np.ndarray) -> Leg:
        own = OFFSETS[part + 1] - OFFSETS[part]
        nothing = Pick(torch.empty(0, dtype=torch.int64), own)
        make: list[RowMap] = [Identity(own) if part % COPIES == copy else nothing] * PART_COUNT
        blocks = [matrix[rows_of(part), rows_of(owner)] for owner in range(PART_COUNT)]
        add = [
            self._product(block if owner % COPIES == copy else block[:, :0])
            for owner, block in enumerate(blocks)
        ]
        diagonal = self._product(blocks[part] * (part % COPIES == copy))
        weight = [torch.ones(row_map.rows_out) for row_map in make]
        return Leg(diagonal, (Move(PARTS, False, make, weight), Add(add), Reduce("copies")))

    def _product(self, block: np.ndarray) -> Product:
        return Product(BENCH.matrix(sp.csr_array(block)))

    def local_rows(self) -> SparseMatrix:
        raise AssertionError("sums cross")


def mover_of(groups: dict[str, Group], copy: int) -> Mover:
    group = groups[PARTS]
    plan = HalfTheOwners(group.rank, copy, dense_matrix())
    policies: dict = dict.fromkeys(DIRECTIONS, Always())
    crossing = Crossing(
        group,
        policies,
        dict.fromkeys(DIRECTIONS, FullPrecision()),
        needed(plan, group, CPU),
        CrossingSettings(),
        CPU,
    )
    return Mover(plan, groups, crossing)


def test_half_of_the_blocks_in_each_copy_and_a_sum_over_copies_is_the_product() -> None:
    parts = [Board(PART_COUNT) for _ in range(COPIES)]
    copies = [Board(COPIES) for _ in range(PART_COUNT)]
    matrix = torch.from_numpy(dense_matrix())
    h = torch.randn(OFFSETS[-1], 3, generator=torch.Generator().manual_seed(0)).double()
    target = torch.cos(h)

    def run(world: Group) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
        copy, part = divmod(world.rank, PART_COUNT)
        groups: dict[str, Group] = {
            PARTS: thread_group(part, PART_COUNT, parts[copy]),
            "copies": thread_group(copy, COPIES, copies[part]),
        }
        mover = mover_of(groups, copy)
        for group in groups.values():
            group.begin_epoch(0)
        mover.crossing.begin_epoch()
        own = h[rows_of(part)].clone().requires_grad_()
        out = aggregate(mover, 1, own, None)
        (out * target[rows_of(part)]).sum().backward()
        once = mover.aggregate_once(own.detach(), 0, absent=False)
        assert own.grad is not None
        sizes = [groups[axis].ledger.wire_of("payload") for axis in (PARTS, "copies")]
        assert sum(groups["copies"].ledger.raw.values()) == sizes[1]
        return part, out.detach(), own.grad, once, sizes

    everyone = results(run_threads(COPIES * PART_COUNT, run))
    for part, out, gradient, once, _ in everyone:
        torch.testing.assert_close(out, (matrix @ h)[rows_of(part)])
        torch.testing.assert_close(gradient, (matrix.T @ target)[rows_of(part)])
        torch.testing.assert_close(once, out)
    for one, other in zip(everyone[:PART_COUNT], everyone[PART_COUNT:], strict=True):
        assert torch.equal(one[1], other[1]) and torch.equal(one[2], other[2]), "every copy has the same bits"
    senders = [sizes[0] > 0 for *_, sizes in everyone]
    assert senders == [True, False, False, True]  # part 0 in copy 0, part 1 in copy 1
    assert all(sizes[1] for *_, sizes in everyone)


MOVE, ADD, SUM = Move(PARTS, False, [], []), Add([]), Reduce("copies")


@pytest.mark.parametrize(
    "program", [(), (MOVE,), (ADD, MOVE), (MOVE, ADD, MOVE, ADD), (MOVE, SUM, ADD), (SUM,)]
)
def test_other_programs_are_refused(program: tuple[Instruction, ...]) -> None:
    """Two moves of one leg would share a stream: nobody could tell their histories apart."""
    diagonal = Product(BENCH.matrix(sp.csr_array((2, 2))))
    Leg(diagonal, (MOVE, ADD))
    Leg(diagonal, (MOVE, ADD, SUM))
    with pytest.raises(ValueError, match=r"a leg is a Move, an Add and any number of Reduce, not \["):
        Leg(diagonal, program)
