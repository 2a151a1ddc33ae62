"""Readers: small files in every real format are read back elementwise, and every mistake is one line."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch

from sancus.datasets import READERS, archive, text
from sancus.datasets.assemble import symmetric
from sancus.datasets.npz import save_npz
from sancus.datasets.open import find_reader, fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs.graph import Graph

NODES, FEATURES, CLASSES = 12, 5, 3


def example(*, directed: bool = False, sparse: bool = False, multilabel: bool = False) -> Graph:
    """Twelve nodes without loops; node 11 has no neighbour, node 10 no label."""
    rng = np.random.default_rng(3)
    dense = rng.random((NODES, NODES)) < 0.3
    np.fill_diagonal(dense, False)
    if not directed:
        dense |= dense.T
    dense[11] = dense[:, 11] = False
    x = rng.integers(0, 9, (NODES, FEATURES)).astype(np.float32)
    if sparse:
        x[rng.random(x.shape) < 0.6] = 0
    y: Any = rng.integers(0, 2, (NODES, CLASSES)).astype(bool) if multilabel else np.arange(NODES) % CLASSES
    if not multilabel:
        y[10] = -1
    split = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, -1, -1])
    masks = [split == number for number in range(3)]
    adjacency = sp.csr_array(dense.astype(np.float32))
    return Graph(adjacency, sp.csr_array(x) if sparse else x, y, *masks, classes=CLASSES)


def dense_of(features: Any) -> Any:
    return features.toarray() if sp.issparse(features) else np.asarray(features)


def assert_same(read: Graph, wanted: Graph, *, split: bool = True) -> None:
    np.testing.assert_array_equal(read.adjacency.toarray(), wanted.adjacency.toarray())
    np.testing.assert_array_equal(dense_of(read.features), dense_of(wanted.features))
    np.testing.assert_array_equal(read.labels, wanted.labels)
    assert read.classes == wanted.classes
    for name in ("train_mask", "val_mask", "test_mask") if split else ():
        np.testing.assert_array_equal(getattr(read, name), getattr(wanted, name))


# One writer a format, as the original tools write it


def write_graphsaint(folder: Path, graph: Graph) -> Path:
    folder.mkdir()
    sp.save_npz(folder / "adj_full.npz", sp.csr_matrix(graph.adjacency.astype(bool)))
    sp.save_npz(folder / "adj_train.npz", sp.csr_matrix(graph.adjacency))
    np.save(folder / "feats.npy", dense_of(graph.features).astype(np.float64))
    labels = {str(node): graph.labels[node].astype(int).tolist() for node in reversed(range(NODES))}
    (folder / "class_map.json").write_text(json.dumps(labels))
    roles = {
        role: np.flatnonzero(mask).tolist()
        for role, mask in zip(("tr", "va", "te"), masks_of(graph), strict=True)
    }
    (folder / "role.json").write_text(json.dumps(roles))
    return folder


def masks_of(graph: Graph) -> list[Any]:
    return [graph.train_mask, graph.val_mask, graph.test_mask]


def write_gz(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file).writerows(rows)


def write_splits(folder: Path, graph: Graph) -> None:
    for name, mask in zip(("train", "valid", "test"), masks_of(graph), strict=True):
        write_gz(folder / "split" / "time" / f"{name}.csv.gz", np.flatnonzero(mask)[:, None].tolist())


def edges_of(graph: Graph) -> Any:
    """`[2, E]`: source, target."""
    coo = graph.adjacency.tocoo()
    return np.stack([coo.col, coo.row]).astype(np.int64)


def write_ogb_csv(folder: Path, graph: Graph) -> Path:
    write_gz(folder / "raw" / "edge.csv.gz", edges_of(graph).T.tolist())
    write_gz(folder / "raw" / "num-node-list.csv.gz", [[NODES]])
    write_gz(folder / "raw" / "num-edge-list.csv.gz", [[graph.edges]])
    write_gz(folder / "raw" / "node-feat.csv.gz", dense_of(graph.features).tolist())
    labels = graph.labels.astype(float)
    rows = labels[:, None] if labels.ndim == 1 else labels
    write_gz(folder / "raw" / "node-label.csv.gz", np.where(rows < 0, np.nan, rows).tolist())
    write_splits(folder, graph)
    return folder


def write_ogb_binary(folder: Path, graph: Graph) -> Path:
    (folder / "raw").mkdir(parents=True)
    np.savez_compressed(
        folder / "raw" / "data.npz",
        edge_index=edges_of(graph),
        num_nodes_list=np.array([NODES]),
        num_edges_list=np.array([graph.edges]),
        node_feat=dense_of(graph.features),
        node_year=np.arange(NODES)[:, None],
    )
    labels = np.where(graph.labels < 0, np.nan, graph.labels).astype(np.float32)[:, None]
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=labels)
    write_splits(folder, graph)
    return folder


def write_gnn_benchmark(path: Path, graph: Graph, edges: str = "adj_", attributes: str = "attr_") -> Path:
    arrays: dict[str, Any] = {}
    for prefix, matrix in ((edges, graph.adjacency), (attributes, sp.csr_array(graph.features))):
        arrays |= {f"{prefix}{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
        arrays[f"{prefix}shape"] = np.array(matrix.shape)
    names = np.array([{"a": 1}], dtype=object)  # the real files hold pickled names, which nobody needs
    np.savez(path, labels=graph.labels, node_names=names, allow_pickle=True, **arrays)  # type: ignore[arg-type]
    return path


def write_planetoid(folder: Path, graph: Graph) -> Path:
    """Nodes 0-3 train, 4-6 validation, 7-9 test in another order; nothing describes 10 and 11."""
    folder.mkdir()
    x, y = sp.csr_matrix(graph.features), np.eye(CLASSES, dtype=np.int32)[graph.labels]
    order = [9, 7, 8]
    neighbours: Any = defaultdict(list)
    for source, target in edges_of(graph).T.tolist():
        neighbours[target].append(source)
    neighbours[11] = []
    content = {"x": x[:4], "allx": x[:7], "tx": x[order], "y": y[:4], "ally": y[:7], "ty": y[order]}
    for name, value in {**content, "graph": neighbours}.items():
        (folder / f"ind.tiny.{name}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.tiny.test.index").write_text("".join(f"{node}\n" for node in order))
    return folder


def write_heterophilous(path: Path, graph: Graph) -> Path:
    ends = edges_of(graph).T
    arrays: dict[str, Any] = {"node_features": dense_of(graph.features), "node_labels": graph.labels}
    arrays["edges"] = ends[ends[:, 0] < ends[:, 1]]  # each edge once
    for name, mask in zip(("train_masks", "val_masks", "test_masks"), masks_of(graph), strict=True):
        arrays[name] = np.stack([np.roll(mask, 1), mask])
    np.savez(path, **arrays)
    return path


def write_wikics(path: Path, graph: Graph) -> Path:
    links = [[int(other) for other in np.flatnonzero(row) if other > node] for node, row in
             enumerate(graph.adjacency.toarray())]  # fmt: skip
    content = {"features": dense_of(graph.features).tolist(), "labels": graph.labels.tolist(), "links": links}
    for name, mask in (("train_masks", graph.train_mask), ("val_masks", graph.val_mask)):
        content[name] = [np.roll(mask, 1).tolist(), mask.tolist()]
    content |= {"test_mask": graph.test_mask.tolist(), "stopping_masks": content["val_masks"]}
    path.write_text(json.dumps(content))
    return path


def write_tables(folder: Path, graph: Graph) -> None:
    np.save(folder / "features.npy", dense_of(graph.features))
    (folder / "labels.csv").write_text("".join(f"{label}\n" for label in graph.labels))
    split = np.full(NODES, -1)
    for number, mask in enumerate(masks_of(graph)):
        split[mask] = number
    (folder / "split.csv").write_text("".join(f"{number}\n" for number in split))


def write_edge_list(folder: Path, graph: Graph) -> Path:
    folder.mkdir()
    write_tables(folder, graph)
    lines = "".join(f"{source}\t{target}\n" for source, target in edges_of(graph).T.tolist())
    (folder / "edges.tsv").write_text(f"# from SNAP\n# FromNodeId\tToNodeId\n{lines}")
    return folder


def write_mtx(folder: Path, graph: Graph) -> Path:
    folder.mkdir()
    write_tables(folder, graph)
    scipy.io.mmwrite(folder / "graph.mtx", sp.coo_matrix(graph.adjacency), symmetry="general")
    return folder / "graph.mtx"


def write_torch(path: Path, graph: Graph) -> Path:
    content = {"x": torch.tensor(dense_of(graph.features)), "y": torch.tensor(graph.labels)}
    content["edge_index"] = torch.tensor(edges_of(graph))
    for name in ("train_mask", "val_mask", "test_mask"):
        content[name] = torch.tensor(getattr(graph, name))
    torch.save((content, None, None), path)  # what PyG's datasets write, but for the class
    return path


def write_npz(path: Path, graph: Graph) -> Path:
    save_npz(graph, path)
    return path


Writer = Callable[[Path, Graph], Path]
FORMATS: dict[str, tuple[Writer, str, bool, bool]] = {
    # writer, name, whether it keeps directions, whether it has the split
    "npz": (write_npz, "tiny.npz", True, True),
    "graphsaint": (write_graphsaint, "tiny", True, True),
    "ogb-folder": (write_ogb_csv, "tiny", True, True),
    "ogb-folder binary": (write_ogb_binary, "tiny", True, True),
    "gnn-benchmark": (write_gnn_benchmark, "tiny.npz", False, False),
    "planetoid": (write_planetoid, "tiny", False, True),
    "heterophilous": (write_heterophilous, "tiny.npz,split=1", False, True),
    "wikics": (write_wikics, "data.json,split=1", False, True),
    "edges": (write_edge_list, "tiny", True, True),
    "mtx": (write_mtx, "tiny", True, True),
    "pt": (write_torch, "tiny.pt", True, True),
}


def written(kind: str, folder: Path, graph: Graph) -> str:
    """A file or folder of a format; the text that names it."""
    writer, name, _, _ = FORMATS[kind]
    name, comma, options = name.partition(",")
    return f"{writer(folder / name, graph)}{comma}{options}"


@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_format_holds_is_read_back(kind: str, tmp_path: Path) -> None:
    graph = example(directed=FORMATS[kind][2], sparse=kind in ("gnn-benchmark", "planetoid"))
    if kind == "planetoid":
        x = graph.features.toarray()
        x[10:] = 0
        labels = graph.labels.copy()
        labels[10:] = -1
        graph = Graph(graph.adjacency, sp.csr_array(x), labels, *masks_of(graph), classes=CLASSES)
    source = written(kind, tmp_path, graph)
    name = kind.split()[0]
    assert find_reader(source)[0] == name
    assert_same(open_graph(source), graph, split=FORMATS[kind][3])
    assert_same(open_graph(f"{name}:{source}"), graph, split=FORMATS[kind][3])  # the format given
    if kind in ("gnn-benchmark", "planetoid"):
        assert sp.issparse(open_graph(source).features)


def test_every_reader_of_files_is_tested() -> None:
    tested = {kind.split()[0] for kind in FORMATS} | {
        "synthetic",
        "pyg",
        "ogb",
        "nodes",
    }  # nodes: test_node_tables.py
    assert tested == set(READERS)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_fingerprint_follows_content_and_options(kind: str, tmp_path: Path) -> None:
    source = written(kind, tmp_path, example(sparse=kind == "planetoid"))
    before = fingerprint(source)
    assert before == fingerprint(source) and before.startswith(kind.split()[0])
    path = find_reader(source)[1].files()[-1]  # type: ignore[attr-defined]
    path.write_bytes(path.read_bytes() + b"\n")
    assert fingerprint(source) != before


@pytest.mark.parametrize("kind", ["graphsaint", "ogb-folder"])
def test_several_labels_a_node(kind: str, tmp_path: Path) -> None:
    graph = example(multilabel=True)
    assert_same(open_graph(written(kind, tmp_path, graph)), graph)


def test_gnn_benchmark_in_its_other_spelling(tmp_path: Path) -> None:
    graph = example(sparse=True)
    path = write_gnn_benchmark(tmp_path / "ml.npz", graph, "adj_matrix.", "attr_matrix.")
    assert_same(open_graph(str(path)), graph, split=False)


def test_a_random_split_is_seeded_and_keeps_to_the_labelled(tmp_path: Path) -> None:
    path = write_gnn_benchmark(tmp_path / "tiny.npz", example(sparse=True))
    first, again, other = (
        open_graph(f"{path},seed={seed},train=0.5,val=0.25,test=0.25") for seed in (0, 0, 1)
    )
    assert [mask.sum() for mask in masks_of(first)] == [5, 3, 3]
    assert not any(mask[10] for mask in masks_of(first))
    np.testing.assert_array_equal(first.train_mask, again.train_mask)
    assert (first.train_mask != other.train_mask).any()


def test_graphsaint_scales_by_the_training_nodes(tmp_path: Path) -> None:
    graph = example()
    read = open_graph(f"{write_graphsaint(tmp_path / 'tiny', graph)},scale=true")
    train = graph.features[graph.train_mask]
    deviation = np.where(train.std(axis=0) == 0, 1, train.std(axis=0))
    np.testing.assert_allclose(read.features, (graph.features - train.mean(axis=0)) / deviation, rtol=1e-5)


def test_ogb_adds_the_other_direction_where_ogb_does(tmp_path: Path) -> None:
    graph = example(directed=True)
    both = ((graph.adjacency + graph.adjacency.T) > 0).toarray().astype(np.float32)
    products = write_ogb_csv(tmp_path / "ogbn_products", graph)
    np.testing.assert_array_equal(open_graph(str(products)).adjacency.toarray(), both)
    assert_same(open_graph(f"{products},undirected=false"), graph)


def test_edges_with_weights_a_header_and_commas(tmp_path: Path) -> None:
    graph = example(directed=True)
    folder = write_edge_list(tmp_path / "tiny", graph)
    (folder / "edges.tsv").unlink()
    lines = [f"{source},{target},{0.5 + source}" for source, target in edges_of(graph).T.tolist()]
    with gzip.open(folder / "edges.csv.gz", "wt") as file:
        file.write("\n".join(["source,target,weight", *lines]))  # no newline at the end
    read = open_graph(str(folder))
    expected = graph.adjacency.toarray() * (0.5 + np.arange(NODES))
    np.testing.assert_array_equal(read.adjacency.toarray(), expected)
    moved = folder / "edges.csv.gz"
    assert_same(open_graph(f"{moved},features=degree,labels=labels.csv,undirected=true"),
                open_graph(f"{folder},features=degree,undirected=true"))  # fmt: skip


def test_tables_in_text_and_labels_by_node(tmp_path: Path) -> None:
    graph = example(directed=True)
    folder = write_edge_list(tmp_path / "tiny", graph)
    (folder / "features.npy").unlink()
    np.savetxt(folder / "features.txt", dense_of(graph.features))
    lines = [f"{node},{label}" for node, label in enumerate(graph.labels) if label >= 0]
    (folder / "labels.csv").write_text("node,class\n" + "\n".join(reversed(lines)))
    assert_same(open_graph(str(folder)), graph)
    (folder / "features.txt").unlink()
    sp.save_npz(folder / "features.npz", sp.csr_matrix(dense_of(graph.features)))
    assert sp.issparse(open_graph(str(folder)).features)
    assert_same(open_graph(str(folder)), graph)


@pytest.mark.parametrize("symmetry", ["symmetric", "pattern", "gz"])
def test_matrix_market_variants(symmetry: str, tmp_path: Path) -> None:
    graph = example()
    path = write_mtx(tmp_path / "tiny", graph)
    matrix = sp.coo_matrix(graph.adjacency)
    field = "pattern" if symmetry == "pattern" else "real"
    scipy.io.mmwrite(path, matrix, comment="two\nlines", field=field, symmetry="symmetric")
    if symmetry == "gz":
        (path.parent / "graph.mtx.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = path.parent / "graph.mtx.gz"
    assert_same(open_graph(str(path)), graph)


def test_pieces_of_text_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces: lines that a piece cuts, blank lines, a comment in the middle."""
    rows = np.arange(300).reshape(100, 3)
    lines = [",".join(map(str, row)) for row in rows]
    lines[50:50] = ["", "# a comment", "   "]
    path = tmp_path / "table.csv"
    path.write_text("a,b,c\n" + "\n".join(lines))
    monkeypatch.setattr(text, "PIECE", 37)
    np.testing.assert_array_equal(text.read_table(path, np.int64), rows)
    np.testing.assert_array_equal(text.read_table(path, np.int64, 3), rows)


def test_large_arrays_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = example(directed=True)
    path = write_npz(tmp_path / "tiny.npz", graph)
    monkeypatch.setattr(archive, "MAP_FROM", 1)
    read = open_graph(str(path))
    assert isinstance(read.features, np.memmap)
    assert_same(read, graph)
    saint = open_graph(str(write_graphsaint(tmp_path / "saint", graph)))
    np.testing.assert_array_equal(saint.features, graph.features)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_download_is_read_as_it_came(kind: str, tmp_path: Path) -> None:
    graph = example(directed=True)
    write_ogb_csv(tmp_path / "tiny" / "tiny", graph)
    path = tmp_path / f"tiny.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive_file:
            for file in sorted((tmp_path / "tiny").rglob("*.gz")):
                archive_file.write(file, file.relative_to(tmp_path / "tiny"))
    else:
        with tarfile.open(path, "w:gz") as tar:
            tar.add(tmp_path / "tiny" / "tiny", "tiny")
    assert find_reader(str(path))[0] == "ogb-folder"
    assert_same(open_graph(str(path)), graph)
    assert fingerprint(str(path)) == fingerprint(str(path))


def test_a_pyg_object_in_a_file_needs_no_pyg(tmp_path: Path) -> None:
    """A saved `Data` names classes of PyG: stand-ins of the same name take their place."""
    graph = example(directed=True)
    write_torch(tmp_path / "tiny.pt", graph)
    mapping = torch.load(tmp_path / "tiny.pt")[0]
    modules: dict[str, Any] = {}
    pairs = (("torch_geometric.data.data", "Data"), ("torch_geometric.data.storage", "GlobalStorage"))
    for module, name in pairs:
        made: Any = type(torch)(module)
        setattr(made, name, type(name, (), {"__module__": module}))
        modules[module] = made
    storage = modules["torch_geometric.data.storage"].GlobalStorage()
    storage.__dict__["_mapping"] = mapping
    data = modules["torch_geometric.data.data"].Data()
    data.__dict__["_store"] = storage
    with pytest.MonkeyPatch.context() as patch:
        for name, module in {"torch_geometric": type(torch)("torch_geometric"), **modules}.items():
            patch.setitem(__import__("sys").modules, name, module)
        torch.save(data, tmp_path / "data.pt")
    assert_same(open_graph(str(tmp_path / "data.pt")), graph)


def test_a_pyg_object_is_read_while_pyg_is_imported(tmp_path: Path) -> None:
    """PyG registers its own classes with torch: they are not used, and stay registered."""
    data = pytest.importorskip("torch_geometric.data")
    graph = example(directed=True)
    write_torch(tmp_path / "tiny.pt", graph)
    torch.save(data.Data.from_dict(torch.load(tmp_path / "tiny.pt")[0]), tmp_path / "data.pt")
    registered = set(torch.serialization.get_safe_globals())
    assert_same(open_graph(str(tmp_path / "data.pt")), graph)
    assert set(torch.serialization.get_safe_globals()) == registered


def test_named_datasets_say_what_they_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as where PyG is not installed
    monkeypatch.setenv("SANCUS_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"needs torch_geometric: pip install 'sancus\[pyg\]'"):
        open_graph("pyg:Reddit")
    with pytest.raises(UserError, match=r"node datasets of OGB are named ogbn-"):
        open_graph("ogb:arxiv")


def test_an_ogb_dataset_by_name_is_found_without_ogb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANCUS_DATA", str(tmp_path))
    graph = example(directed=True)
    write_ogb_csv(tmp_path / "ogbn_arxiv", graph)
    assert_same(open_graph("ogb:ogbn-arxiv"), graph)
    assert_same(open_graph("ogbn_arxiv"), graph)  # a bare name is a folder too


REAL = Path(os.environ.get("SANCUS_DATA", "/nonexistent")) / "cora.npz"


@pytest.mark.skipif(not REAL.exists(), reason="SANCUS_DATA holds no cora.npz")
def test_cora_through_every_format_that_keeps_it(tmp_path: Path) -> None:
    """The real graph, written as text and as a sparse archive, is the same graph."""
    cora = open_graph(str(REAL))
    path = write_gnn_benchmark(tmp_path / "cora.npz", cora)
    assert_same(open_graph(str(path)), cora, split=False)
    buffer = io.StringIO()
    np.savetxt(buffer, edges_of(cora).T, fmt="%d", delimiter=",")
    (tmp_path / "edges.csv").write_text(buffer.getvalue())
    (tmp_path / "labels.csv").write_text("\n".join(map(str, cora.labels)))
    sp.save_npz(tmp_path / "features.npz", sp.csr_matrix(cora.features))
    assert_same(open_graph(str(tmp_path / "edges.csv")), cora, split=False)


@pytest.mark.parametrize("weighted", [False, True])
def test_made_undirected_a_graph_has_both_directions_and_no_loops(weighted: bool) -> None:
    given = sp.csr_array(np.array([[5.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 7.0, 1.0]], np.float32))
    expected = np.array([[0, 3, 0], [3, 0, 7], [0, 7, 0]], np.float32)
    both = symmetric(given, weighted=weighted)
    np.testing.assert_array_equal(both.toarray(), expected if weighted else expected > 0)
