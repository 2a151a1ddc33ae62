"""Graphs: validation, normalisation against dense formulas, blocks, shards and what damages them."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.graphs import shards
from sancus.graphs.blocks import Blocks
from sancus.graphs.graph import Graph, from_edges
from sancus.graphs.normalise import Normalisation, RowSums, normalise, normalise_transposed, row_sums
from sancus.graphs.shard_files import NpyFile
from sancus.graphs.shard_writer import write_shards
from sancus.runs.node_order import in_user_order
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency
from tests.helpers.threads import open_own, results, run_threads

KINDS = ("symmetric", "mean", "sum")


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Dense adjacencies: directed, weighted, with loops and nodes without a neighbour."""
    nodes = draw(st.integers(1, 9))
    ends = st.integers(0, nodes - 1)
    edges = draw(st.dictionaries(st.tuples(ends, ends), st.floats(0.25, 4.0, width=32), max_size=2 * nodes))
    weights = np.zeros((nodes, nodes), np.float32)
    for (target, source), weight in edges.items():
        weights[target, source] = weight
    return weights


def formula(kind: str, a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`Â` by the book."""
    a = a.astype(np.float64)
    if kind == "symmetric":
        a = a + np.diag(np.where(np.diag(a) == 0, 1.0, 0.0))
        root = np.diag(1 / np.sqrt(a.sum(axis=1)))
        return root @ a @ root
    degree = a.sum(axis=1)
    return np.diag(np.where(degree > 0, 1 / np.where(degree > 0, degree, 1), 0)) @ a if kind == "mean" else a


# Normalisation


@pytest.mark.parametrize("kind", KINDS)
@given(weights=matrices(), data=st.data())
def test_normalise_equals_the_formula(kind: Any, weights: np.ndarray[Any, Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(weights)))
    stop = data.draw(st.integers(start, len(weights)))
    adjacency, sums = sp.csr_array(weights), row_sums(sp.csr_array(weights))

    def sums_of(ids: np.ndarray[Any, Any]) -> RowSums:
        return RowSums(sums.plain[ids], sums.looped[ids])

    expected = formula(kind, weights)
    rows = normalise(kind, adjacency[start:stop], start, sums_of)
    np.testing.assert_allclose(rows.toarray(), expected[start:stop], rtol=1e-12)
    columns = normalise_transposed(kind, adjacency.T.tocsr()[start:stop], start, sums_of)
    np.testing.assert_allclose(columns.toarray(), expected.T[start:stop], rtol=1e-12)


def test_normalise_by_hand() -> None:
    """Node 0 has a loop of weight 2, node 1 aggregates from 0, node 2 is isolated."""
    weights = np.array([[2.0, 0, 0], [1.0, 0, 0], [0, 0, 0]], np.float32)
    adjacency = sp.csr_array(weights)
    sums = row_sums(adjacency)
    assert sums.plain.tolist() == [2, 1, 0] and sums.looped.tolist() == [2, 2, 1]
    np.testing.assert_allclose(
        normalise("symmetric", adjacency, 0, lambda ids: sums).toarray(),
        [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]],
    )
    sums_of_neighbours = RowSums(sums.plain[[0]], sums.looped[[0]])
    np.testing.assert_allclose(
        normalise("mean", adjacency, 0, lambda ids: sums if len(ids) == 3 else sums_of_neighbours).toarray(),
        [[1, 0, 0], [1, 0, 0], [0, 0, 0]],
    )


# Blocks


@given(weights=matrices(), data=st.data())
def test_relabelling_and_back(weights: np.ndarray[Any, Any], data: st.DataObject) -> None:
    nodes, parts = len(weights), data.draw(st.integers(1, 4))
    assignment = np.array(data.draw(st.lists(st.integers(0, parts - 1), min_size=nodes, max_size=nodes)))
    blocks = Blocks.from_assignment(assignment, parts)
    assert blocks.parts == parts
    assert sorted(blocks.order.tolist()) == list(range(nodes))
    for part in range(parts):
        assert blocks.own(part).tolist() == np.flatnonzero(assignment == part).tolist()
    relabelled = blocks.relabel(sp.csr_array(weights))
    assert relabelled.has_sorted_indices
    back = np.zeros_like(weights)
    back[np.ix_(blocks.order, blocks.order)] = relabelled.toarray()
    np.testing.assert_array_equal(back, weights)


# Graphs


def test_edges_point_from_source_to_target_and_merge() -> None:
    edges = np.array([[0, 0, 2, 1], [1, 1, 0, 1]])
    expected = np.zeros((3, 3))
    expected[1, 0] = expected[0, 2] = expected[1, 1] = 1.0
    np.testing.assert_array_equal(from_edges(edges, 3).toarray(), expected)
    weighted = from_edges(edges, 3, np.array([1.0, 2.0, 5.0, 7.0])).toarray()
    assert (weighted[1, 0], weighted[0, 2], weighted[1, 1]) == (3.0, 5.0, 7.0)


@pytest.mark.parametrize(
    "entries, directed",
    [
        ([], False),
        ([(0, 1, 1.0), (1, 0, 1.0)], False),
        ([(2, 2, 3.0)], False),
        ([(0, 1, 1.0)], True),
        ([(0, 1, 1.0), (1, 0, 2.0)], True),
        ([(0, 1, 0.0)], True),  # a stored zero is in the pattern, which is what plans are made of
    ],
)
def test_directed_means_another_transpose(entries: list[tuple[int, int, float]], directed: bool) -> None:
    rows, columns, data = (list(part) for part in zip(*entries, strict=True)) if entries else ([], [], [])
    adjacency = sp.csr_array((np.array(data, np.float32), (rows, columns)), shape=(3, 3))
    assert small(adjacency=adjacency).directed == directed


def small(**changes: Any) -> Graph:
    fields: dict[str, Any] = {
        "adjacency": sp.csr_array(np.eye(3, k=1, dtype=np.float32)),
        "features": np.ones((3, 2), np.float32),
        "labels": np.array([0, 1, 1]),
        "train_mask": np.array([True, False, False]),
        "val_mask": np.array([False, True, False]),
        "test_mask": np.array([False, False, True]),
        "classes": 2,
        "name": "small",
    }
    return Graph(**fields | changes)


NAN_ROW = np.array([[1, 1], [1, np.nan], [1, 1]], np.float32)
SPARSE_NAN = sp.csr_array(np.array([[0, 0], [0, 0], [0, np.inf]], np.float32))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"adjacency": sp.csr_array((0, 0))}, "the graph has no nodes"),
        ({"adjacency": sp.csr_array((3, 4))}, "adjacency is (3, 4), it must be square"),
        ({"features": np.ones((2, 2), np.float32)}, "features has 2 rows, the graph has 3 nodes"),
        ({"labels": np.array([0, 1])}, "labels has 2 rows"),
        ({"test_mask": np.array([True])}, "test_mask has 1 rows"),
        ({"adjacency": sp.csr_array(np.diag([1, np.nan, 1]))}, "an edge weight is NaN or infinite"),
        ({"features": NAN_ROW}, "features of node 1 hold NaN or infinity"),
        ({"features": SPARSE_NAN}, "features of node 2 hold NaN or infinity"),
        ({"val_mask": np.zeros(3, bool)}, "val_mask selects no node"),
        ({"labels": np.array([0, 2, 1])}, "label 2 of node 1 is out of range; labels are 0 to 1"),
        ({"labels": np.array([0, 1, -2])}, "label -2 of node 2 is out of range"),
        ({"labels": np.array([0, -1, 1])}, "val_mask selects node 1, which has no label"),
        ({"labels": np.ones((3, 4), bool)}, "labels have 4 columns for 2 classes"),
        ({"val_mask": np.array([True, True, False])}, "train_mask and val_mask both select node 0"),
        ({"test_mask": np.array([False, True, True])}, "val_mask and test_mask both select node 1"),
        ({"train_mask": np.array([True, False, True])}, "train_mask and test_mask both select node 2"),
    ],
)
def test_a_bad_graph_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        small(**changes)
    assert str(caught.value).startswith("small: ") and "\n" not in str(caught.value)


def test_labels_and_masks_are_read_only() -> None:
    graph = small()
    for name in ("labels", "train_mask", "val_mask", "test_mask"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(graph, name)[0] = 1


# Shards


@pytest.mark.parametrize("variant", ["directed", "undirected", "sparse", "multilabel", "weighted"])
@pytest.mark.parametrize("how", ["random", "with-empty-block"])
def test_shards_hold_the_whole_graph(variant: str, how: str, tmp_path: Path) -> None:
    flags: dict[str, dict[str, Any]] = {"directed": {}, "undirected": {"directed": False}}
    graph = awkward_graph(**flags.get(variant, {variant: True}))
    folder = shards_of(graph, how, 3, tmp_path)
    parts = [shards.open_shard(folder, rank) for rank in range(3)]
    order = np.concatenate([part.nodes for part in parts])
    assert sorted(order.tolist()) == list(range(graph.nodes))
    for part in parts:
        np.testing.assert_array_equal(part.labels, graph.labels[part.nodes])
        for split in ("train", "val", "test"):
            np.testing.assert_array_equal(part.mask(split), getattr(graph, f"{split}_mask")[part.nodes])
        features: Any = part.features
        expected: Any = graph.features[part.nodes]
        assert sp.issparse(features) == sp.issparse(graph.features)
        np.testing.assert_array_equal(
            features.toarray() if sp.issparse(features) else features,
            expected.toarray() if sp.issparse(expected) else expected,
        )
    kinds: tuple[Normalisation, ...] = ("symmetric", "mean")
    for kind in kinds:
        dense = dense_adjacency(graph, kind).numpy()[np.ix_(order, order)]
        operators = [part.operator(kind) for part in parts]
        rows = np.concatenate([operator.rows.toarray() for operator in operators])
        columns = np.concatenate([operator.transposed_rows.toarray() for operator in operators])
        np.testing.assert_allclose(rows, dense, rtol=1e-12)
        np.testing.assert_allclose(columns, dense.T, rtol=1e-12)
    facts = parts[0].manifest["graph"]
    assert (facts["nodes"], facts["edges"], facts["directed"]) == (graph.nodes, graph.edges, graph.directed)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return shards_of(awkward_graph(), "contiguous", 2, tmp_path)


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_flipped_byte_anywhere_is_found(whole: Path) -> None:
    names = files_of(whole)
    assert len(names) > 20
    for name in names:
        rank = 1 if "rank-1" in name else 0
        path = whole / name
        content = path.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            damaged = bytearray(content)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=re.escape(str(whole))):
                shards.open_shard(whole, rank)
        path.write_bytes(content)
        shards.open_shard(whole, rank)


def test_a_flipped_bit_of_the_manifest_is_found(whole: Path) -> None:
    path = whole / "manifest.json"
    content, facts = path.read_bytes(), shards.read_manifest(whole)
    found = 0
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            read = shards.read_manifest(whole)
        except UserError:
            found += 1
        else:
            assert read == facts  # the last digit of a share may not matter
    assert found > len(content) // 3 - 5


@pytest.mark.parametrize("name", ["rank-0/nodes.npy", "manifest.json"])
def test_a_missing_file_is_found(whole: Path, name: str) -> None:
    (whole / name).unlink()
    with pytest.raises(UserError, match="damaged or missing; delete"):
        shards.open_shard(whole, 0)


def test_another_format_is_refused(whole: Path) -> None:
    path = whole / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(UserError, match=f"has shard format 99, this version reads {shards.FORMAT}"):
        shards.open_shard(whole, 0)


@pytest.mark.parametrize("after", [0, 5, 25])
def test_a_full_disk_leaves_nothing_behind(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, original = [], NpyFile.write

    def fill(file: NpyFile, data: bytes) -> None:
        written.append(data)
        if len(written) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(file, data)

    monkeypatch.setattr(NpyFile, "write", fill)
    target = tmp_path / "shards" / "here"
    with pytest.raises(UserError, match=r"cannot write shards to .*: No space left on device; free space"):
        write_shards(awkward_graph(), np.zeros(23, np.int64), 1, "contiguous", target)
    assert list((tmp_path / "shards").iterdir()) == []


def test_predictions_come_back_in_the_users_order(tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = shards_of(graph, "with-empty-block", 3, tmp_path)

    def run(group: Group) -> torch.Tensor | None:
        shard = open_own(folder, group)
        own = torch.from_numpy(np.array(shard.nodes))
        return in_user_order(shard, group, torch.stack([own * 10, own], dim=1))

    everyone = results(run_threads(3, run))
    assert everyone[1:] == [None, None]
    assert everyone[0].tolist() == [[node * 10, node] for node in range(graph.nodes)]


def test_a_graph_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().classes = 3  # type: ignore[misc]


def test_released_features_leave_memory_and_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "features.npy"
    np.save(path, np.arange(4_000_000, dtype=np.float32))
    mapped = np.load(path, mmap_mode="r")
    shard = shards.Shard(0, {}, {"features": mapped})
    total = mapped.sum()
    before = resident_file_pages()
    shard.release("features")
    assert before - resident_file_pages() > 8_000_000
    assert mapped.sum() == total
    shard.release("labels")


def resident_file_pages() -> int:
    """Bytes of mapped files in this process's memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux has RssFile")
