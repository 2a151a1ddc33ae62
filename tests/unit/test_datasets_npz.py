"""The .npz reader: what is written is read back, and every mistake is one line that names the field."""

from __future__ import annotations

import dataclasses
import os
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sancus.datasets import READERS
from sancus.datasets.info import facts_of, info_rows, oddities
from sancus.datasets.npz import NpzReader, save_npz
from sancus.datasets.open import check_source, fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from tests.helpers.graphs import awkward_graph

Arrays = dict[str, Any]


def small() -> Arrays:
    """Four nodes, edges 0 -> 1, 1 -> 2, 2 -> 0, 0 -> 3."""
    masks = np.eye(4, dtype=bool)
    return {
        "edge_index": np.array([[0, 1, 2, 0], [1, 2, 0, 3]]),
        "x": np.arange(8, dtype=np.float64).reshape(4, 2),
        "y": np.array([0, 1, 2, -1]),
        "train_mask": masks[0],
        "val_mask": masks[1],
        "test_mask": masks[2],
    }


def rows() -> Arrays:
    """The same graph as CSR, with sparse features."""
    arrays = small()
    del arrays["edge_index"], arrays["x"]
    x = sp.csr_array(small()["x"])
    arrays |= {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data, "x_shape": np.array(x.shape)}
    return arrays | {"indptr": np.array([0, 1, 2, 3, 4]), "indices": np.array([2, 0, 1, 0])}


def write(folder: Path, arrays: Arrays) -> str:
    path = folder / "graph.npz"
    np.savez(path, **arrays)
    return str(path)


def message(source: str) -> str:
    with pytest.raises(UserError) as caught:
        open_graph(source)
    text = str(caught.value)
    assert "\n" not in text
    return text


def same(left: Graph, right: Graph) -> None:
    for one, two in ((left.adjacency, right.adjacency), (left.features, right.features)):
        assert sp.issparse(one) == sp.issparse(two)
        assert one.dtype == two.dtype == np.float32
        one, two = (value.toarray() if sp.issparse(value) else value for value in (one, two))
        np.testing.assert_array_equal(one, two)
    for field in ("labels", "train_mask", "val_mask", "test_mask"):
        assert getattr(left, field).dtype == getattr(right, field).dtype
        np.testing.assert_array_equal(getattr(left, field), getattr(right, field))
    assert left.classes == right.classes


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs: directed, weighted or not, dense or sparse features, one or several labels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes, width, classes = draw(st.integers(3, 12)), draw(st.integers(1, 5)), draw(st.integers(2, 4))
    pattern = rng.random((nodes, nodes)) < draw(st.sampled_from([0.0, 0.2, 1.0]))
    weights = rng.normal(size=(nodes, nodes)) if draw(st.booleans()) else np.ones((nodes, nodes))
    x = (rng.normal(size=(nodes, width)) * (rng.random((nodes, width)) < 0.5)).astype(np.float32)
    place = rng.permutation(np.arange(nodes) % 4)
    place[rng.permutation(nodes)[:3]] = [0, 1, 2]
    masks = [place == split for split in range(3)]
    labels = rng.integers(0, classes, nodes)
    labels[place == 3] = -1
    several = rng.random((nodes, classes)) < 0.5
    return Graph(
        sp.csr_array((pattern * weights).astype(np.float32)),
        sp.csr_array(x) if draw(st.booleans()) else x,
        several if draw(st.booleans()) else labels,
        *masks,
        classes=classes,
    )


@settings(max_examples=50, deadline=None)
@given(graph=graphs())
def test_round_trip(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("npz") / "graph.npz"
    save_npz(graph, path)
    same(graph, open_graph(str(path)))
    assert [file.name for file in path.parent.iterdir()] == ["graph.npz"]


def test_row_lists_what_it_aggregates_from(tmp_path: Path) -> None:
    graph = open_graph(write(tmp_path, small()))
    assert graph.adjacency.toarray()[1].tolist() == [1, 0, 0, 0]  # the edge 0 -> 1
    assert (graph.nodes, graph.edges, graph.classes, graph.name) == (4, 4, 3, "graph")
    assert graph.features.flags.c_contiguous


def test_both_forms_give_one_graph(tmp_path: Path) -> None:
    dense = open_graph(write(tmp_path, small()))
    sparse = open_graph(write(tmp_path, rows()))
    np.testing.assert_array_equal(dense.adjacency.toarray(), sparse.adjacency.toarray())
    assert sp.issparse(sparse.features)
    np.testing.assert_array_equal(dense.features, sparse.features.toarray())


@pytest.mark.parametrize("form", [small, rows])
def test_equal_edges_merge_and_rows_are_sorted(tmp_path: Path, form: Callable[[], Arrays]) -> None:
    arrays = form()
    if "edge_index" in arrays:
        arrays["edge_index"] = np.array([[3, 0, 0, 1], [2, 2, 2, 2]])
    else:
        arrays |= {"indptr": np.array([0, 0, 0, 4, 4]), "indices": np.array([3, 0, 0, 1])}
    plain = open_graph(write(tmp_path, arrays)).adjacency
    assert (
        plain.has_canonical_format
        and plain.indices.tolist() == [0, 1, 3]
        and plain.data.tolist() == [1, 1, 1]
    )
    weighted = open_graph(write(tmp_path, arrays | {"edge_weight": np.array([1, 2, 3, 4])})).adjacency
    assert weighted.indices.tolist() == [0, 1, 3] and weighted.data.tolist() == [5, 4, 1]


def test_accepts_what_people_have(tmp_path: Path) -> None:
    arrays = small()
    arrays["train_mask"] = arrays["train_mask"].astype(np.uint8)
    arrays["y"] = arrays["y"][:, None]  # as OGB
    arrays["edge_index"] = arrays["edge_index"].astype(np.uint32)
    arrays["x"] = np.asfortranarray(arrays["x"])
    graph = open_graph(write(tmp_path, arrays))
    assert graph.train_mask.dtype == bool and graph.labels.tolist() == [0, 1, 2, -1]
    assert graph.features.dtype == np.float32 and graph.features.flags.c_contiguous
    assert open_graph(write(tmp_path, arrays | {"edge_index": np.zeros((2, 0))})).edges == 0
    several = open_graph(write(tmp_path, arrays | {"y": np.array([[1, 0], [1, 1], [0, 0], [0, 1]])}))
    assert several.multilabel and several.classes == 2


def test_wide_features_are_never_dense(tmp_path: Path) -> None:
    arrays = rows() | {"x_shape": np.array([4, 10**12])}  # dense, this would be 16 TB
    assert open_graph(write(tmp_path, arrays)).features.shape == (4, 10**12)


NAN = np.array([[0, 1], [2, np.nan], [4, 5], [6, 7.0]])
WRONG: list[tuple[str, Callable[[], Arrays], Arrays, str, str]] = [
    ("no edges", small, {"edge_index": None}, "edge_index", "missing"),
    ("no x", small, {"x": None}, "x", "missing"),
    ("no y", small, {"y": None}, "y", "missing"),
    ("no mask", small, {"val_mask": None}, "val_mask", "missing"),
    ("no indices", rows, {"indices": None}, "indices", "missing"),
    ("no indptr", rows, {"indptr": None}, "indptr", "missing"),
    ("no x_shape", rows, {"x_shape": None}, "x_shape", "missing"),
    ("no x_data", rows, {"x_data": None}, "x_data", "missing"),
    ("edge too large", small, {"edge_index": np.array([[0], [4]])}, "edge_index", "node 4 at"),
    ("edge negative", small, {"edge_index": np.array([[-1], [0]])}, "edge_index", "node -1 at"),
    ("edge transposed", small, {"edge_index": np.zeros((3, 2), int)}, "edge_index", "transpose"),
    ("edge float", small, {"edge_index": np.ones((2, 3))}, "edge_index", "dtype float64"),
    ("edge flat", small, {"edge_index": np.zeros(4, int)}, "edge_index", "shape [4]"),
    ("two forms of edges", small, {"indptr": np.zeros(5, int)}, "edge_index", "both present"),
    ("two forms of x", rows, {"x": np.zeros((4, 2))}, "x", "both present"),
    ("weights short", small, {"edge_weight": np.ones(3)}, "edge_weight", "[4]"),
    ("weights nan", small, {"edge_weight": np.full(4, np.nan)}, "edge_weight", "NaN"),
    ("indptr falls", rows, {"indptr": np.array([0, 2, 1, 3, 4])}, "indptr", "never decreases"),
    ("indptr short", rows, {"indptr": np.array([0, 2, 4])}, "indptr", "has 3 entries"),
    ("indptr end", rows, {"indptr": np.array([0, 1, 2, 3, 5])}, "indptr", "to 5"),
    ("indptr start", rows, {"indptr": np.array([1, 1, 2, 3, 4])}, "indptr", "from 1"),
    ("indices too large", rows, {"indices": np.array([2, 0, 9, 0])}, "indices", "node 9"),
    ("x_indptr falls", rows, {"x_indptr": np.array([0, 3, 1, 5, 7])}, "x_indptr", "never decreases"),
    ("x_indices too large", rows, {"x_indices": np.array([1, 0, 1, 0, 1, 0, 7])}, "x_indices", "column 7"),
    ("x_data short", rows, {"x_data": np.ones(3)}, "x_data", "shape [3]"),
    ("x_data nan", rows, {"x_data": np.full(7, np.nan)}, "x_data", "NaN"),
    ("x nan", small, {"x": NAN}, "x", "NaN or infinity at [1, 1]"),
    ("x overflow", small, {"x": np.full((4, 2), 1e300)}, "x", "infinity"),
    ("x objects", small, {"x": np.array([[{}] * 2] * 4, object)}, "x", "pickled"),
    ("x text", small, {"x": np.full((4, 2), "a")}, "x", "dtype <U1"),
    ("x flat", small, {"x": np.zeros(4)}, "x", "shape [4]"),
    ("x empty", small, {"x": np.zeros((0, 2))}, "x", "above 0"),
    ("y short", small, {"y": np.array([0, 1])}, "y", "shape [2]"),
    ("y low", small, {"y": np.array([0, 1, 2, -2])}, "y", "label -2 for node 3"),
    ("y high", small, {"y": np.array([0, 1, 2, 10**12])}, "y", "label 1000000000000"),
    ("y over classes", small, {"classes": np.array(2)}, "y", "label 2 for node 2"),
    ("y float", small, {"y": np.zeros(4)}, "y", "dtype float64"),
    ("y several", small, {"y": np.full((4, 3), 2)}, "y", "only 0 and 1"),
    ("mask short", small, {"train_mask": np.ones(2, bool)}, "train_mask", "shape [2]"),
    ("mask not boolean", small, {"val_mask": np.array([0, 0, 2, 0])}, "val_mask", "holds 2"),
    ("mask float", small, {"val_mask": np.ones(4)}, "val_mask", "dtype float64"),
    ("mask empty", small, {"test_mask": np.zeros(4, bool)}, "test_mask", "selects no node"),
    ("mask unlabelled", small, {"test_mask": np.array([0, 0, 0, 1])}, "test_mask", "no label"),
    ("masks overlap", small, {"val_mask": np.array([1, 1, 0, 0])}, "val_mask", "overlap"),
]


@pytest.mark.parametrize(
    ("form", "change", "field", "says"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_mistake(tmp_path: Path, form: Callable[[], Arrays], change: Arrays, field: str, says: str) -> None:
    arrays = {name: array for name, array in (form() | change).items() if array is not None}
    text = message(write(tmp_path, arrays))
    assert text.startswith(f"{tmp_path}/graph.npz: {field} ")
    assert says in text


@pytest.mark.parametrize("kept", [0, 10, 500, -1])
def test_truncated(tmp_path: Path, kept: int) -> None:
    path = Path(write(tmp_path, small()))
    path.write_bytes(path.read_bytes()[:kept])
    assert re.match(f"{path}: is not a .npz archive, or is truncated", message(str(path)))


def test_flipped_byte(tmp_path: Path) -> None:
    path = Path(write(tmp_path, small()))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("x.npy").header_offset
    content[start + 200] ^= 1
    path.write_bytes(content)
    assert f"{path}: x is damaged" in message(str(path))


def test_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.save(path.open("wb"), np.zeros(3))
    assert "is not a .npz archive" in message(str(path))


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = open_graph(write(tmp_path, small()))
    before = (tmp_path / "graph.npz").read_bytes()

    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UserError, match="No space left"):
        save_npz(graph, tmp_path / "graph.npz")
    assert (tmp_path / "graph.npz").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["graph.npz"]


@pytest.mark.parametrize("name", ["graph.pt", "missing/graph.npz"])
def test_where_nothing_can_be_written(tmp_path: Path, name: str) -> None:
    graph = open_graph(write(tmp_path, small()))
    with pytest.raises(UserError, match="graph"):
        save_npz(graph, tmp_path / name)


def test_fingerprint_is_that_of_the_bytes(tmp_path: Path) -> None:
    one = fingerprint(write(tmp_path, small()))
    assert one == fingerprint(write(tmp_path, small())) and re.fullmatch("npz-[0-9a-f]{32}", one)
    assert one != fingerprint(write(tmp_path, small() | {"y": np.array([0, 1, 1, -1])}))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("synthetc", "did you mean synthetic?"),
        ("nowhere/graph.npz", "'nowhere/graph.npz' does not exist; give the path of a .npz file"),
        ("graph.pt", "'graph.pt' does not exist; give the path of a .npz file, of a folder"),
        ("nowhere/graph", "does not exist; give the path of a .npz file"),
        ("reddit@0.05", "did you mean synthetic:reddit@0.05?"),
        ("", "does not exist; give synthetic, the path of a .npz file"),
        ("npz", "does not exist"),
        ("no.such:Reader", "cannot import 'no.such'"),
    ],
)
def test_unknown_source(source: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANCUS_DATA", raising=False)
    for ask in (check_source, open_graph, fingerprint):
        with pytest.raises(UserError, match=r"^graph") as caught:
            ask(source)
        assert says in str(caught.value) and "\n" not in str(caught.value)


def test_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "graph.csv").write_text("0,1\n")
    with pytest.raises(UserError, match=r"graph.csv: no labels; put labels.csv"):
        check_source(str(tmp_path / "graph.csv"))
    with pytest.raises(UserError, match="no reader knows this folder"):
        check_source(str(tmp_path))


def test_bare_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, small())
    monkeypatch.setenv("SANCUS_DATA", str(tmp_path))
    assert open_graph("graph").nodes == 4
    with pytest.raises(UserError, match=r"graph, synthetic \(did you mean graph\?\)"):
        check_source("grpah")


def test_reader_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "mine.py").write_text(
        "class Mine:\n"
        "    def __init__(self, text): self.text = text\n"
        "    def fingerprint(self): return self.text\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert fingerprint("pack.mine:Mine:hello") == "hello"


def test_every_reader_is_importable() -> None:
    for target in READERS.values():
        module, _, name = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name).load)


STORED = sorted(Path(os.environ.get("SANCUS_DATA", "/nonexistent")).glob("*.npz"))


@pytest.mark.parametrize("path", STORED, ids=[path.stem for path in STORED])
def test_real_graph(path: Path) -> None:
    graph = NpzReader(str(path)).load()
    assert graph.adjacency.has_canonical_format and graph.features.dtype == np.float32
    assert 0 < graph.train_mask.sum() < graph.nodes and graph.classes >= 2
    if path.stem == "cora":
        assert (graph.nodes, graph.edges, graph.classes) == (2708, 2 * 5278, 7)
        assert sp.issparse(graph.features) and graph.feature_count == 1433 and not graph.directed


def test_a_billion_classes_take_no_memory_to_look_at() -> None:
    """A file may name any number of classes; what is counted is the classes that nodes have."""
    graph = dataclasses.replace(awkward_graph(), classes=10**9)
    facts = facts_of(graph)
    tracemalloc.start()
    rows, lines = dict(info_rows(graph, facts, "npz")), oddities(graph, facts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
    assert (
        rows["nodes a class"].startswith("0 to ") and "999999997 of 1000000000 classes have no node" in lines
    )
