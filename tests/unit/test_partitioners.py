"""Every partitioner of the table keeps the contract; quality counts what a plain loop counts."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sancus.partitioners import PARTITIONERS
from sancus.partitioners.bytegnn import ByteGnn, neighbourhood_blocks
from sancus.partitioners.ldg import Ldg, _place
from sancus.partitioners.metis import Metis, fill_empty, undirected
from sancus.partitioners.pieces import csr_pieces, rows_of_entries
from sancus.partitioners.quality import quality
from sancus.partitioners.random import Random


def make(name: str, **chosen: Any) -> Any:
    module, _, attribute = PARTITIONERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(**chosen)


every = pytest.mark.parametrize("name", sorted(PARTITIONERS))
seeded = pytest.mark.parametrize("name", ["metis", "random"])
property_test = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def graphs(draw: st.DrawFn) -> sp.csr_array:
    """Directed graphs with self-loops, isolated nodes and unsorted columns; sometimes no edge at all."""
    nodes = draw(st.integers(1, 40))
    ends = st.integers(0, nodes - 1)
    drawn = draw(st.sets(st.tuples(ends, ends), max_size=4 * nodes))
    edges = sorted(drawn, key=lambda edge: (edge[0], -edge[1]))
    rows = np.array([v for v, _ in edges], dtype=np.int32)
    columns = np.array([u for _, u in edges], dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=nodes))]).astype(np.int32)
    weights = np.arange(len(edges), dtype=np.float32)  # the first weight is a stored zero
    return sp.csr_array((weights, columns, starts), shape=(nodes, nodes))


@st.composite
def cut_graphs(draw: st.DrawFn) -> tuple[sp.csr_array, int]:
    adjacency = draw(graphs())
    return adjacency, draw(st.integers(1, adjacency.shape[0]))


def two_communities(size: int, seed: int) -> sp.csr_array:
    """Two dense groups of `size` nodes, shuffled, with a handful of edges between them."""
    draws = np.random.default_rng(seed)
    group = draws.permutation(np.repeat([0, 1], size))
    chance = np.where(group[:, None] == group[None, :], 0.2, 0.005)
    return sp.csr_array((draws.random(chance.shape) < chance).astype(np.float32))


@every
@property_test
@given(case=cut_graphs())
def test_every_node_gets_one_part_and_no_part_is_empty(name: str, case: tuple[sp.csr_array, int]) -> None:
    adjacency, parts = case
    before = [array.copy() for array in (adjacency.data, adjacency.indices, adjacency.indptr)]
    assignment = make(name).assign(adjacency, parts)
    assert assignment.shape == (adjacency.shape[0],)
    assert assignment.dtype == np.int64
    assert set(assignment.tolist()) == set(range(parts))
    np.testing.assert_array_equal(make(name).assign(adjacency, parts), assignment)
    for array, copy in zip((adjacency.data, adjacency.indices, adjacency.indptr), before, strict=True):
        np.testing.assert_array_equal(array, copy)


@every
def test_one_part_and_one_part_a_node(name: str) -> None:
    adjacency = two_communities(20, seed=1)
    assert not make(name).assign(adjacency, 1).any()
    assert sorted(make(name).assign(adjacency, 40).tolist()) == list(range(40))


@every
@pytest.mark.parametrize("nodes, parts", [(1, 1), (7, 3), (1000, 4), (1000, 9)])
def test_a_graph_without_edges_is_balanced(name: str, nodes: int, parts: int) -> None:
    sizes = np.bincount(make(name).assign(sp.csr_array((nodes, nodes)), parts), minlength=parts)
    assert sizes.sum() == nodes
    assert sizes.max() <= 1.1 * nodes / parts + 1


@every
@pytest.mark.parametrize("parts", [3, 8])
def test_disconnected_communities_with_isolated_nodes(name: str, parts: int) -> None:
    blocks = sp.block_diag([two_communities(100, seed=2), two_communities(100, seed=3)])
    adjacency = sp.csr_array(sp.block_diag([blocks, sp.csr_array((50, 50))]))
    sizes = np.bincount(make(name).assign(adjacency, parts), minlength=parts)
    assert sizes.sum() == 450
    assert sizes.max() <= 1.1 * 450 / parts + 1


@every
@pytest.mark.parametrize("parts", [6, 30])
def test_a_small_dense_graph_is_balanced(name: str, parts: int) -> None:
    """METIS's k-way scheme would put all rows of such a graph in one part."""
    draws = np.random.default_rng(9)
    adjacency = sp.csr_array((draws.random((60, 60)) < 0.9).astype(np.float32))
    assert np.bincount(make(name).assign(adjacency, parts)).max() <= 60 / parts + 2


@every
@pytest.mark.parametrize("parts", [-1, 0, 6])
def test_an_impossible_number_of_parts_is_one_line(name: str, parts: int) -> None:
    with pytest.raises(ValueError, match=f"^parts={parts}: .*$") as raised:
        make(name).assign(sp.csr_array((5, 5)), parts)
    assert "\n" not in str(raised.value)


@seeded
@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused(name: str, seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed={seed}"):
        make(name, seed=seed)


@seeded
def test_the_seed_matters(name: str) -> None:
    adjacency = two_communities(200, seed=4)
    first, second = (make(name, seed=seed).assign(adjacency, 7) for seed in (0, 1))
    assert (first != second).any()


def test_metis_refuses_an_unknown_balance() -> None:
    with pytest.raises(ValueError, match="'edges' is not one of rows, nonzeros"):
        Metis(balance="edges")


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_metis_cuts_less_than_random(parts: int) -> None:
    adjacency = two_communities(200, seed=5)
    cut = {
        chosen: quality(adjacency, chosen.assign(adjacency, parts), parts).edge_cut
        for chosen in (Metis(), Metis(balance="nonzeros"), Random())
    }
    assert cut[Metis()] < cut[Random()]
    assert cut[Metis(balance="nonzeros")] < cut[Random()]
    if parts == 2:
        assert cut[Metis()] < 0.1 * cut[Random()]  # it finds the two communities


def test_metis_sees_a_one_way_edge_from_both_ends() -> None:
    """Only the upper triangle is stored: the lower is the same graph to METIS."""
    upper = sp.csr_array(sp.triu(two_communities(150, seed=6), k=1))
    ours, turned = (Metis().assign(sp.csr_array(matrix), 2) for matrix in (upper, upper.T))
    np.testing.assert_array_equal(ours, turned)
    assert quality(upper, ours, 2).edge_cut_share < 0.1


def test_metis_balances_what_it_is_asked_to() -> None:
    """A quarter of the nodes is a dense community: one part of four by rows, most of the entries."""
    draws = np.random.default_rng(7)
    dense = np.arange(400) < 100
    chance = np.where(dense[:, None] & dense[None, :], 0.5, 0.005)
    adjacency = sp.csr_array((draws.random((400, 400)) < chance).astype(np.float32))
    rows, nonzeros = (
        quality(adjacency, Metis(balance=what).assign(adjacency, 4), 4) for what in ("rows", "nonzeros")
    )
    assert rows.rows_imbalance < 1.05
    assert nonzeros.nonzeros_imbalance < 1.15
    assert rows.nonzeros_imbalance > 2


@property_test
@given(adjacency=graphs())
def test_undirected_is_the_pattern_without_its_diagonal(adjacency: sp.csr_array) -> None:
    starts, neighbours = undirected(adjacency)
    rows = np.repeat(np.arange(adjacency.shape[0]), np.diff(adjacency.indptr))
    pairs = set(zip(rows.tolist(), adjacency.indices.tolist(), strict=True))
    expected = {(v, u) for a, b in pairs for v, u in ((a, b), (b, a)) if v != u}
    ends = np.repeat(np.arange(adjacency.shape[0]), np.diff(starts))
    assert len(neighbours) == len(expected)
    assert set(zip(ends.tolist(), neighbours.tolist(), strict=True)) == expected


def test_fill_empty_takes_the_loneliest_row_of_the_largest_part() -> None:
    members = fill_empty(np.array([0, 0, 0, 0, 2, 2]), np.array([3, 1, 4, 2, 0, 0]), 4)
    assert members.tolist() == [0, 1, 0, 3, 2, 2]


@property_test
@given(case=cut_graphs(), data=st.data())
def test_quality_counts_what_a_loop_counts(case: tuple[sp.csr_array, int], data: st.DataObject) -> None:
    adjacency, parts = case
    nodes = adjacency.shape[0]
    part = np.array(data.draw(st.lists(st.integers(0, parts - 1), min_size=nodes, max_size=nodes)))
    cut, rows, nonzeros = 0, [0] * parts, [0] * parts
    crossing: set[tuple[int, int]] = set()
    for v in range(nodes):
        rows[part[v]] += 1
        for u in adjacency.indices[adjacency.indptr[v] : adjacency.indptr[v + 1]].tolist():
            nonzeros[part[v]] += 1
            if part[v] != part[u]:
                cut += 1
                crossing.add((int(part[v]), u))
    found = quality(adjacency, part, parts)
    assert (found.parts, found.edge_cut) == (parts, cut)
    assert (found.rows, found.nonzeros) == (tuple(rows), tuple(nonzeros))
    assert found.edge_cut_share == pytest.approx(cut / max(1, sum(nonzeros)))
    assert found.rows_imbalance == pytest.approx(max(rows) * parts / nodes)
    assert found.nonzeros_imbalance == pytest.approx(max(nonzeros) * parts / max(1, sum(nonzeros)) or 1)
    assert {k: found.payload_rows[k] for k in ("block", "halo")} == {
        "block": (parts - 1) * nodes,
        "halo": len(crossing),
    }
    assert found.halo_sent == tuple(sum(part[u] == owner for _, u in crossing) for owner in range(parts))
    assert found.halo_received == tuple(sum(i == receiver for i, _ in crossing) for receiver in range(parts))


def test_quality_is_ready_for_json() -> None:
    adjacency = two_communities(10, seed=8)
    plain = quality(adjacency, Metis().assign(adjacency, 3), 3).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["payload_rows"]["block"] == 40


@pytest.mark.parametrize(
    "assignment, message",
    [
        ([0, 1, 2], "node 2 is assigned to part 2; parts are 0 to 1"),
        ([0, -1, 1], "node 1 is assigned to part -1"),
        ([0, 1], "3 whole numbers"),
        ([0.0, 1.0, 1.0], "got float64"),
    ],
)
def test_quality_refuses_a_bad_assignment(assignment: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quality(sp.csr_array((3, 3)), np.array(assignment), 2)


# Partitioners that know training


def split_of(nodes: int, seed: int = 0) -> Any:
    """1 training, 2 validation, 3 test; the first nodes train, so that a cut by rows alone is uneven."""
    splits = np.full(nodes, 3, np.int8)
    splits[: nodes // 5] = 1
    splits[nodes // 5 : nodes // 3] = 2
    return splits


def imbalance(assignment: Any, chosen: Any, parts: int) -> float:
    counts = np.bincount(assignment[chosen], minlength=parts)
    return float(counts.max() / counts.mean())


def ring_of_groups(groups: int, size: int, seed: int) -> sp.csr_array:
    """Dense groups in a ring, in the order of the nodes: the best cut keeps the first nodes together."""
    draws = np.random.default_rng(seed)
    group = np.arange(groups * size) // size
    near = (group[:, None] - group[None, :]) % groups
    chance = np.where(near == 0, 0.3, np.where((near == 1) | (near == groups - 1), 0.02, 0.0))
    dense = draws.random(chance.shape) < chance
    return sp.csr_array((dense | dense.T).astype(np.float32))


def test_metis_balances_several_things_at_once() -> None:
    adjacency, splits = ring_of_groups(12, 50, seed=1), split_of(600)
    alone = Metis().assign(adjacency, 3, splits)
    together = Metis(balance="rows+nonzeros+train+val+test").assign(adjacency, 3, splits)
    assert imbalance(alone, splits == 1, 3) > 1.5
    for kind in (1, 2, 3):
        assert imbalance(together, splits == kind, 3) < 1.3
    assert quality(adjacency, together, 3).rows_imbalance < 1.15
    assert (
        quality(adjacency, together, 3).edge_cut
        < quality(adjacency, Random().assign(adjacency, 3), 3).edge_cut
    )
    np.testing.assert_array_equal(
        together, Metis(balance="rows+nonzeros+train+val+test").assign(adjacency, 3, splits)
    )


@pytest.mark.parametrize("balance", ["", "rows+", "rows+rows", "rows+weights"])
def test_metis_refuses_a_wrong_sum_of_balances(balance: str) -> None:
    with pytest.raises(ValueError, match=r"balance="):
        Metis(balance=balance)


def test_several_constraints_without_a_split_are_those_that_exist() -> None:
    adjacency = two_communities(100, seed=2)
    found = Metis(balance="rows+train+val+test").assign(adjacency, 2)
    np.testing.assert_array_equal(found, Metis().assign(adjacency, 2))


def test_bytegnn_blocks_by_hand() -> None:
    """A path 0-1-2-3-4-5-6, centres 0 and 3: two hops from 3 win over one from 0 only where 0 is later."""
    rows = np.arange(6)
    path = sp.csr_array((np.ones(6), (rows, rows + 1)), shape=(8, 8))  # node 7 is alone
    starts, neighbours = undirected(path)
    centres = np.isin(np.arange(8), [0, 3])
    assert neighbourhood_blocks(starts, neighbours, centres, 1).tolist() == [0, 0, 1, 1, 1, 2, 3, 4]
    assert neighbourhood_blocks(starts, neighbours, centres, 2).tolist() == [0, 0, 1, 1, 1, 1, 2, 3]
    assert neighbourhood_blocks(starts, neighbours, centres, 0).tolist() == [0, 2, 3, 1, 4, 5, 6, 7]


def test_bytegnn_balances_the_splits_and_cuts_less_than_random() -> None:
    adjacency, splits = ring_of_groups(12, 50, seed=3), split_of(600)
    found = ByteGnn().assign(adjacency, 4, splits)
    for kind in (1, 2, 3):
        assert imbalance(found, splits == kind, 4) < 1.25
    cut = [quality(adjacency, a, 4).edge_cut for a in (found, Random().assign(adjacency, 4))]
    assert cut[0] < 0.9 * cut[1]


def test_bytegnn_follows_algorithm_2_on_two_blocks() -> None:
    """Two cliques with one training node each: the second goes where balance is, not to the first."""
    clique = np.ones((4, 4)) - np.eye(4)
    adjacency = sp.csr_array(sp.block_diag([clique, clique]))
    splits = np.array([1, 0, 0, 0, 1, 0, 0, 0], np.int8)
    found = ByteGnn(hops=1).assign(adjacency, 2, splits)
    assert len(set(found[:4])) == 1 and len(set(found[4:])) == 1 and found[0] != found[4]


@pytest.mark.parametrize("wrong", [{"hops": -1}, {"train": -1.0}, {"train": 0.0, "val": 0.0, "test": 0.0}])
def test_bytegnn_refuses_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hops=-1|weights"):
        ByteGnn(**wrong)


def test_ldg_keeps_capacity_and_improves_with_passes() -> None:
    adjacency = ring_of_groups(16, 40, seed=4)
    cut = {}
    for passes in (1, 10):
        found = Ldg(passes=passes).assign(adjacency, 4)
        assert np.bincount(found, minlength=4).tolist() == [160] * 4
        cut[passes] = quality(adjacency, found, 4).edge_cut
    assert cut[10] < cut[1] < quality(adjacency, Random().assign(adjacency, 4), 4).edge_cut


def test_a_cover_is_never_larger_than_the_halo() -> None:
    """A star cut in two: the hub's part gets one row, sums instead of leaves."""
    star = np.zeros((9, 9))
    star[0, 1:] = 1
    found = quality(sp.csr_array(star), np.array([0] + [1] * 8), 2)
    assert found.payload_rows == {"block": 9, "halo": 8, "prepost": 1}
    assert (
        "prepost" not in quality(sp.csr_array(star), np.array([0] + [1] * 8), 2, cover_limit=7).payload_rows
    )


@property_test
@given(case=cut_graphs())
def test_covers_are_at_most_the_halo_in_either_direction(case: tuple[sp.csr_array, int]) -> None:
    adjacency, parts = case
    part = Random().assign(adjacency, parts)
    forward = quality(adjacency, part, parts).payload_rows
    turned = quality(sp.csr_array(adjacency.T), part, parts).payload_rows
    assert forward["prepost"] == turned["prepost"] <= min(forward["halo"], turned["halo"])


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    adjacency = two_communities(60, seed=9)
    part = Random().assign(adjacency, 3)
    whole = quality(adjacency, part, 3)
    monkeypatch.setattr(csr_pieces, "__defaults__", (7,))
    assert quality(adjacency, part, 3) == whole


def test_pieces_of_a_pointer_beyond_32_bits() -> None:
    pointer = np.array([0, 2**31, 2**31 + 5, 2**32 + 1, 2**33])
    assert [(p.start, p.stop) for p in csr_pieces(pointer, 2**31 + 10)] == [(0, 2), (2, 3), (3, 4)]
    assert rows_of_entries(np.array([2**33, 2**33 + 2, 2**33 + 3]), slice(0, 2)).tolist() == [0, 0, 1]


def test_ldg_weighs_neighbours_by_the_room_that_is_left() -> None:
    """`|N(v) ∩ P_i| · (1 − |P_i| / C)`: one neighbour in an empty part beats two in a nearly full one."""
    counts, sizes = np.array([[2.0, 1.0], [2.0, 0.0]]), np.array([3, 0])
    assert _place(counts, sizes, 4).tolist() == [1, 0]
    assert _place(counts[:1], np.array([0, 0]), 4).tolist() == [0]
