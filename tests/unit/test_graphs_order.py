"""The order inside a block: a permutation that keeps every row in its part, and helps where it should."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import scipy.sparse as sp
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sancus import api
from sancus.config.settings import FactorSettings
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.graphs.row_order import ROWS_IN_CACHE, RowOrder, block_order, hit_rate
from sancus.graphs.shard_files import NpyFile
from sancus.graphs.shard_writer import write_shards
from sancus.graphs.shards import MANIFEST, UnusableShardsError, checksum_of_facts, manifest_text, open_shard
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


LARGE = 3 * ROWS_IN_CACHE  # nodes of one part whose rows `auto` puts into another order


def large_graph(*, sparse: bool) -> Graph:
    """Communities whose nodes are mixed, with features that tell the nodes apart."""
    matrix = shuffled(communities(LARGE, 32, 6))
    adjacency = sp.csr_array(((matrix + matrix.T) > 0).astype(np.float32))
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    random = np.random.default_rng(3)
    features = random.random((LARGE, 3), np.float32)
    split = random.integers(0, 3, LARGE)
    return Graph(
        name="large",
        adjacency=adjacency,
        features=sp.csr_array(features) if sparse else features,
        labels=random.integers(0, 3, LARGE),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        classes=3,
    )


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


@pytest.mark.parametrize("how", ORDERS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_row_of_a_shard_is_of_its_node(tmp_path: Path, how: RowOrder, sparse: bool, parts: int) -> None:
    graph, assignment = large_graph(sparse=sparse), np.arange(LARGE) % parts
    write_shards(graph, assignment, parts, "odd", tmp_path / how, row_order=how)
    features = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    shards = [open_shard(tmp_path / how, rank) for rank in range(parts)]
    nodes = np.concatenate([shard.nodes for shard in shards])
    for shard in shards:
        held = shard.features
        np.testing.assert_array_equal(held.toarray() if sp.issparse(held) else held, features[shard.nodes])
        np.testing.assert_array_equal(shard.labels, graph.labels[shard.nodes])
        for split in ("train", "val", "test"):
            mask = getattr(graph, f"{split}_mask")[shard.nodes]
            np.testing.assert_array_equal(shard.arrays[f"{split}_mask"], mask)
        expected = graph.adjacency[shard.nodes][:, nodes]
        assert abs(shard.operator("sum").rows - expected).max() == 0
    moved = any((np.diff(shard.nodes) < 0).any() for shard in shards)
    assert moved == (how in ("rcm", "metis") or (how == "auto" and parts == 1))


@pytest.mark.parametrize(
    ("how", "sparse", "usable"), [("rcm", False, False), ("rcm", True, True), ("given", False, True)]
)
def test_shards_of_before_are_read_where_their_features_are_right(
    how: RowOrder, sparse: bool, usable: bool, tmp_path: Path
) -> None:
    """Format 3 had the dense features of reordered rows in the user's order."""
    target = tmp_path / "shards"
    write_shards(large_graph(sparse=sparse), np.arange(LARGE) % 2, 2, "odd", target, row_order=how)
    manifest = json.loads((target / MANIFEST).read_text()) | {"format": 3}
    del manifest["checksum"]
    manifest["checksum"] = checksum_of_facts(manifest)
    (target / MANIFEST).write_text(manifest_text(manifest))
    if usable:
        assert open_shard(target, 1).rank == 1
    else:
        with pytest.raises(
            UnusableShardsError, match="features in the wrong rows, by an error of before; delete"
        ):
            open_shard(target, 1)


@given(rows=st.permutations(range(12)), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_rows_in_any_order_make_the_file_and_its_checksum(rows: list[int], cuts: list[int]) -> None:
    matrix = np.random.default_rng(0).random((12, 3), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sub" / "rows.npy"
        with NpyFile(path, np.float32, matrix.shape) as file:
            for piece in np.split(np.array(rows), sorted(cuts)):
                file.place(piece, matrix[piece])
        np.testing.assert_array_equal(np.load(path), matrix)
        assert file.checksum == xxhash.xxh3_128_hexdigest(path.read_bytes())


def test_a_matrix_of_which_rows_are_missing_is_noticed(tmp_path: Path) -> None:
    file = NpyFile(tmp_path / "rows.npy", np.float32, (3, 2))
    with pytest.raises(AssertionError, match="not complete"), file:
        file.place(np.array([2, 0]), np.zeros((2, 2), np.float32))


def test_the_logits_of_a_large_graph_are_those_of_the_equations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Â relu(Â X W⁰ + b⁰) W¹ + b¹` by SciPy, for rows that were put into another order for the cache."""
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    graph = large_graph(sparse=False)
    result = api.train(graph, layers=2, hidden=4, dropout=0.0, epochs=3, dtype="float64", threads=1)
    looped = graph.adjacency.astype(np.float64) + sp.eye_array(LARGE)
    scale = sp.diags_array(looped.sum(axis=1) ** -0.5)
    operator = scale @ looped @ scale
    weights = [parameter.detach().numpy() for parameter in result.model.parameters()]
    hidden = np.maximum(operator @ (graph.features @ weights[0]) + weights[1], 0)
    np.testing.assert_allclose(result.logits, operator @ (hidden @ weights[2]) + weights[3], atol=1e-10)


def test_the_cache_keeps_orders_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    folders = {
        prepare("synthetic:nodes=60,features=4,classes=3", "random", 2, row_order=how).directory
        for how in ("given", "rcm")
    }
    assert len(folders) == 2


def test_the_flag_knows_every_order() -> None:
    assert get_type_hints(FactorSettings)["row_order"] == RowOrder
