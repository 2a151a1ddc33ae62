"""Every plan of the table factorises `Â` and `Âᵀ`: payloads of all owners add up to the dense product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.graphs.blocks import Blocks
from sancus.graphs.normalise import RowSums, normalise, normalise_transposed, row_sums
from sancus.graphs.operator import Operator
from sancus.kernels import KERNELS
from sancus.plans import PLANS
from sancus.plans.base import Leg, Plan, Workbench
from sancus.plans.maps import Above, Beside, Identity, Pick, Product, RowMap, Scatter
from sancus.plugins import build

BENCH = Workbench(build("kernel", KERNELS, "torch"), torch.float64, torch.device("cpu"))
every_plan = pytest.mark.parametrize("name", PLANS)


@dataclass(frozen=True)
class Cut:
    """A relabelled graph in blocks, and its dense `Â`."""

    offsets: np.ndarray[Any, Any]
    dense: torch.Tensor
    operators: list[Operator]

    @property
    def ranks(self) -> int:
        return len(self.operators)

    def rows(self, rank: int) -> slice:
        return slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))

    def block(self, i: int, j: int, *, transposed: bool = False) -> torch.Tensor:
        return (self.dense.T if transposed else self.dense)[self.rows(i), self.rows(j)]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """Directed weighted graphs with loops and isolated nodes; some blocks are empty."""
    nodes, ranks = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    ends = st.integers(0, nodes - 1)
    edges = draw(st.dictionaries(st.tuples(ends, ends), st.integers(1, 9), max_size=3 * nodes))
    weights = np.zeros((nodes, nodes), np.float32)
    for (target, source), weight in edges.items():
        weights[target, source] = weight
    assignment = np.array(draw(st.lists(st.integers(0, ranks - 1), min_size=nodes, max_size=nodes)))
    kind = draw(st.sampled_from(["symmetric", "mean", "sum"]))
    return cut(sp.csr_array(weights), assignment, ranks, kind)


def cut(adjacency: sp.csr_array, assignment: np.ndarray[Any, Any], ranks: int, kind: Any) -> Cut:
    blocks = Blocks.from_assignment(assignment, ranks)
    relabelled = blocks.relabel(adjacency)
    transposed = relabelled.T.tocsr()
    sums = row_sums(relabelled)

    def sums_of(ids: np.ndarray[Any, Any]) -> RowSums:
        return RowSums(sums.plain[ids], sums.looped[ids])

    operators = []
    for rank in range(ranks):
        start, stop = blocks.offsets[rank], blocks.offsets[rank + 1]
        rows = normalise(kind, relabelled[start:stop], int(start), sums_of)
        columns = normalise_transposed(kind, transposed[start:stop], int(start), sums_of)
        operators.append(Operator(rank, blocks.offsets, rows, columns))
    dense = np.concatenate([operator.rows.toarray() for operator in operators])
    return Cut(blocks.offsets, torch.from_numpy(dense), operators)


def plans_of(name: str, graph: Cut) -> list[Plan]:
    return [build("plan", PLANS, name, operator=operator, bench=BENCH) for operator in graph.operators]


def leg_of(plan: Plan, direction: str) -> Leg:
    leg: Leg = getattr(plan, direction)
    return leg


def dense_of(row_map: RowMap) -> torch.Tensor:
    """A map as a matrix: its image of the identity."""
    return row_map.apply(torch.eye(row_map.rows_in, dtype=torch.float64)).clone()


@every_plan
@pytest.mark.parametrize("direction", ["forward", "backward"])
@given(graph=cuts())
def test_payloads_add_up_to_the_dense_product(name: str, direction: str, graph: Cut) -> None:
    legs = [leg_of(plan, direction) for plan in plans_of(name, graph)]
    matrix = graph.dense if direction == "forward" else graph.dense.T
    h = torch.from_numpy(np.random.default_rng(0).standard_normal((len(graph.dense), 3)))
    for i, leg in enumerate(legs):
        out = leg.diagonal.apply(h[graph.rows(i)])
        for j, owner in enumerate(legs):
            if j == i:
                continue
            payload = owner.make[i].apply(h[graph.rows(j)])
            assert payload.shape[0] == owner.make[i].rows_out == leg.add[j].rows_in
            leg.add[j].add(payload, out)
        torch.testing.assert_close(out, matrix[graph.rows(i)] @ h)


@every_plan
@pytest.mark.parametrize("direction", ["forward", "backward"])
@given(graph=cuts())
def test_each_block_is_factorised_alone(name: str, direction: str, graph: Cut) -> None:
    legs = [leg_of(plan, direction) for plan in plans_of(name, graph)]
    for i, leg in enumerate(legs):
        torch.testing.assert_close(
            dense_of(leg.diagonal), graph.block(i, i, transposed=direction == "backward")
        )
        for j, owner in enumerate(legs):
            if j != i:
                expected = graph.block(i, j, transposed=direction == "backward")
                torch.testing.assert_close(dense_of(leg.add[j]) @ dense_of(owner.make[i]), expected)
                if leg.add[j].empty:
                    assert not expected.any()
                else:
                    assert expected.any()


@every_plan
@given(graph=cuts())
def test_maps_keep_their_word(name: str, graph: Cut) -> None:
    for rank, plan in enumerate(plans_of(name, graph)):
        for leg in (plan.forward, plan.backward):
            others = [maps[r] for maps in (leg.make, leg.add) for r in range(graph.ranks) if r != rank]
            for row_map in (leg.diagonal, *others):
                check_map(row_map)


def check_map(row_map: RowMap) -> None:
    dense = dense_of(row_map)
    assert dense.shape == (row_map.rows_out, row_map.rows_in)
    assert row_map.empty == (not dense.any())
    flipped = row_map.transposed
    assert (flipped.rows_out, flipped.rows_in) == (row_map.rows_in, row_map.rows_out)
    torch.testing.assert_close(dense_of(flipped), dense.T)
    assert flipped.empty == row_map.empty
    h, out = torch.randn(row_map.rows_in, 2).double(), torch.randn(row_map.rows_out, 2).double()
    expected = out + dense @ h
    row_map.add(h, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "row_map",
    [
        Identity(3),
        Identity(0),
        Pick(torch.tensor([2, 0]), 4),
        Pick(torch.tensor([], dtype=torch.int64), 4),
        Scatter(torch.tensor([2, 0]), 4),
        Scatter(torch.tensor([], dtype=torch.int64), 0),
        Product(BENCH.matrix(sp.csr_array(np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])))),
        Product(BENCH.matrix(sp.csr_array((2, 3)))),
        Product(BENCH.matrix(sp.csr_array((0, 3)))),
        Above(
            Pick(torch.tensor([2, 0]), 3), Product(BENCH.matrix(sp.csr_array(np.array([[0.0, 2.0, 1.0]]))))
        ),
        Beside(Identity(2), Scatter(torch.tensor([1]), 2)),
        Beside(Scatter(torch.tensor([], dtype=torch.int64), 2), Identity(2)),
    ],
    ids=lambda row_map: f"{type(row_map).__name__}-{row_map.rows_in}-{row_map.rows_out}",
)
def test_maps_alone(row_map: RowMap) -> None:
    check_map(row_map)


@every_plan
@given(graph=cuts())
def test_local_rows_multiply_own_and_received_rows(name: str, graph: Cut) -> None:
    plans = plans_of(name, graph)
    h = torch.from_numpy(np.random.default_rng(1).standard_normal((len(graph.dense), 2)))
    for i, plan in enumerate(plans):
        if not plan.picks_rows:
            continue
        received = [plans[j].forward.make[i].apply(h[graph.rows(j)]) for j in range(graph.ranks) if j != i]
        rows = torch.cat([h[graph.rows(i)], *received])
        torch.testing.assert_close(plan.local_rows().multiply(rows), graph.dense[graph.rows(i)] @ h)


@given(graph=cuts())
def test_halo_rows_are_the_distinct_columns_and_the_others_boundary(graph: Cut) -> None:
    plans = plans_of("halo", graph)
    for i in range(graph.ranks):
        for j in range(graph.ranks):
            if i == j:
                continue
            needed = torch.nonzero(graph.block(i, j).any(dim=0)).flatten().tolist()
            assert graph.operators[i].halo(j).tolist() == needed
            assert graph.operators[j].boundary(i).tolist() == needed
            assert plans[j].forward.make[i].rows_out == len(needed) == plans[i].backward.make[j].rows_out


@given(graph=cuts())
def test_block_sends_whole_blocks(graph: Cut) -> None:
    for rank, plan in enumerate(plans_of("block", graph)):
        own = len(graph.dense[graph.rows(rank)])
        for leg in (plan.forward, plan.backward):
            assert leg.broadcast and {row_map.rows_out for row_map in leg.make} == {own}


def test_no_plan_uses_the_matrix_where_its_transpose_is_meant() -> None:
    """One edge, 0 -> 1, on two ranks: forward rank 1 needs rank 0's row, backward the other way round."""
    adjacency = sp.csr_array(np.array([[0.0, 0.0], [1.0, 0.0]], np.float32))
    graph = cut(adjacency, np.array([0, 1]), 2, "sum")
    for name in PLANS:
        first, second = plans_of(name, graph)
        assert first.forward.add[1].empty and not second.forward.add[0].empty
        assert not first.backward.add[1].empty and second.backward.add[0].empty
