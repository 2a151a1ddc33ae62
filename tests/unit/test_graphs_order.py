"""The order inside a block: a permutation that keeps every row in its part, and helps where it should."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from sancus.config.settings import FactorSettings
from sancus.errors import UserError
from sancus.graphs.order import ROWS_IN_CACHE, RowOrder, block_order, hit_rate
from sancus.graphs.shard_writer import write_shards
from sancus.graphs.shards import open_shard
from sancus.shards.cache import prepare
from tests.helpers.graphs import awkward_graph

ORDERS = get_args(RowOrder)


def communities(nodes: int, size: int, degree: int, seed: int = 0) -> sp.csr_array:
    """Neighbouring rows are joined; nearly nothing else is."""
    random = np.random.default_rng(seed)
    row = np.repeat(np.arange(nodes), degree)
    near = np.minimum(row // size * size + random.integers(0, size, len(row)), nodes - 1)
    matrix = sp.csr_array((np.ones(len(row)), (row, near)), shape=(nodes, nodes))
    matrix.sum_duplicates()
    return matrix


def shuffled(matrix: sp.csr_array, seed: int = 1) -> sp.csr_array:
    order = np.random.default_rng(seed).permutation(matrix.shape[0])
    mixed = sp.csr_array(matrix[order][:, order])
    mixed.sort_indices()
    return mixed


@given(
    nodes=st.integers(1, 60), parts=st.integers(1, 5), entries=st.integers(0, 200), seed=st.integers(0, 99)
)
@pytest.mark.parametrize("how", ORDERS)
def test_every_row_stays_in_its_part(how: RowOrder, nodes: int, parts: int, entries: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    row, col = random.integers(0, nodes, (2, entries))
    adjacency = sp.csr_array((np.ones(entries), (row, col)), shape=(nodes, nodes))
    assignment = random.integers(0, parts, nodes)
    order = block_order(adjacency, assignment, parts, how)
    assert sorted(order) == list(range(nodes))
    assert bool((np.diff(assignment[order]) >= 0).all())


def test_given_is_the_users_order() -> None:
    order = block_order(communities(10, 5, 2), np.array([1, 0] * 5), 2, "given")
    assert order.tolist() == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]


@pytest.mark.parametrize("how", ["auto", "rcm", "metis"])
def test_a_shuffled_graph_is_put_in_order(how: RowOrder) -> None:
    matrix = shuffled(communities(5 * ROWS_IN_CACHE, 400, 8))
    order = block_order(matrix, np.zeros(matrix.shape[0], np.int64), 1, how)
    assert hit_rate(matrix, order) > hit_rate(matrix) + 0.3


def test_auto_leaves_a_good_order_alone() -> None:
    matrix = communities(5 * ROWS_IN_CACHE, 400, 8)
    order = block_order(matrix, np.zeros(matrix.shape[0], np.int64), 1, "auto")
    assert np.array_equal(order, np.arange(matrix.shape[0]))


def test_auto_leaves_small_blocks_alone() -> None:
    matrix = shuffled(communities(ROWS_IN_CACHE, 100, 4))
    order = block_order(matrix, np.zeros(ROWS_IN_CACHE, np.int64), 1, "auto")
    assert np.array_equal(order, np.arange(ROWS_IN_CACHE))


def test_the_same_graph_gets_the_same_order() -> None:
    matrix = shuffled(communities(3 * ROWS_IN_CACHE, 400, 8))
    assignment = np.zeros(matrix.shape[0], np.int64)
    first, second = (block_order(matrix, assignment, 1, "metis") for _ in range(2))
    assert np.array_equal(first, second)


def test_hit_rate_of_the_extremes() -> None:
    same = sp.csr_array((np.ones(100), np.zeros(100, np.int64), np.arange(101)), shape=(100, 100))
    assert hit_rate(same) == 1.0
    assert hit_rate(sp.csr_array(np.eye(50))) == 0.0
    assert hit_rate(sp.csr_array((3, 3))) == 1.0


def test_an_unknown_order_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="auto, given, metis, rcm"):
        block_order(communities(10, 5, 2), np.zeros(10, np.int64), 1, "random")  # type: ignore[arg-type]


def test_shards_keep_the_asked_order_and_the_same_graph(tmp_path: Path) -> None:
    graph, assignment = awkward_graph(nodes=40, seed=2), np.arange(40) % 2
    dense = {}
    for how in ("given", "rcm"):
        write_shards(graph, assignment, 2, "odd", tmp_path / how, row_order=how)
        shards = [open_shard(tmp_path / how, rank) for rank in range(2)]
        assert shards[0].manifest["row_order"] == how
        nodes = np.concatenate([shard.nodes for shard in shards])
        rows = np.concatenate([shard.operator("sum").rows.toarray() for shard in shards])
        matrix = np.zeros_like(rows)
        matrix[np.ix_(nodes, nodes)] = rows
        dense[how] = matrix
        assert (assignment[shards[0].nodes] == 0).all()
        assert (np.diff(shards[0].nodes) > 0).all() == (how == "given")
    np.testing.assert_array_equal(dense["given"], dense["rcm"])


def test_the_cache_keeps_orders_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    folders = {
        prepare("synthetic:nodes=60,features=4,classes=3", "random", 2, row_order=how).directory
        for how in ("given", "rcm")
    }
    assert len(folders) == 2


def test_the_flag_knows_every_order() -> None:
    assert get_type_hints(FactorSettings)["row_order"] == RowOrder
