"""Bad files: every reader answers with one line that names the file, runs nothing, leaves nothing."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sancus.datasets import archive, spool, text
from sancus.datasets.open import find_reader, open_graph
from sancus.datasets.restricted import load_restricted
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from tests.unit.test_datasets_formats import FORMATS, example, write_gz, written

Change = Callable[[Path], None]


def says(source: str | Path, words: str) -> str:
    """The one line that opening a source gives."""
    with pytest.raises(UserError, match=words) as caught:
        open_graph(str(source))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def in_npz(field: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change one array of an archive."""

    def apply(path: Path) -> None:
        with np.load(path) as old:
            arrays = {name: old[name] for name in old.files if name != "node_names"}
        arrays[field] = change(arrays[field])
        np.savez(path, **arrays)

    return apply


def in_json(field: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        content = json.loads(path.read_text())
        content[field] = change(content[field])
        path.write_text(json.dumps(content))

    return apply


def set_at(place: Any, value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = np.array(array, dtype=np.float64 if isinstance(value, float) else None)
        array[place] = value
        return array

    return change


def replace(*files: str) -> Callable[[Path], Path]:
    return lambda path: path.joinpath(*files)


def lines(*content: str) -> Change:
    return lambda path: (path.write_text("".join(f"{line}\n" for line in content)), None)[1]


def gz(*rows: list[Any]) -> Change:
    return lambda path: write_gz(path, rows)


def saved(array: Any) -> Change:
    return lambda path: np.save(path, array)


NAN = float("nan")
CASES: list[tuple[str, str, Change, str]] = [
    # format, file in it, what happens to it, what is said
    (
        "graphsaint",
        "adj_full.npz",
        in_npz("indices", set_at(0, 99)),
        r"adj_full.npz: indices holds column 99",
    ),
    ("graphsaint", "adj_full.npz", in_npz("indices", set_at(0, -1)), r"indices holds column -1 at \[0\]"),
    (
        "graphsaint",
        "adj_full.npz",
        in_npz("indptr", lambda a: a[:-1]),
        r"indptr has 12 entries; 12 nodes need 13",
    ),
    (
        "graphsaint",
        "adj_full.npz",
        in_npz("shape", lambda a: np.add(a, (0, 1))),
        r"shape is \[12, 13\]; .* square",
    ),
    ("graphsaint", "adj_full.npz", in_npz("shape", lambda a: a * 1.0), r"shape has dtype float64"),
    (
        "graphsaint",
        "feats.npy",
        saved(np.ones((11, 5))),
        r"feats.npy: feats has shape \[11, 5\]; it must be \[12",
    ),
    ("graphsaint", "feats.npy", saved(np.full((12, 5), NAN)), r"feats holds NaN or infinity at \[0, 0\]"),
    (
        "graphsaint",
        "feats.npy",
        saved(np.array([["a"] * 5] * 12)),
        r"feats has dtype <U1; save it as numbers",
    ),
    ("graphsaint", "feats.npy", saved(np.array([{}], object)), r"feats.npy: is a pickled object array"),
    ("graphsaint", "class_map.json", in_json("3", lambda _: 2.5), r"class_map.json: .*not a whole number"),
    ("graphsaint", "class_map.json", in_json("3", lambda _: -7), r"class_map holds label -7 for node 3"),
    ("graphsaint", "class_map.json", in_json("3", lambda _: [0, 1]), r"labels of different lengths"),
    ("graphsaint", "class_map.json", lines("{}"), r"class_map has 0 nodes; the graph has 12"),
    ("graphsaint", "class_map.json", lines("[" * 100000), r"class_map.json: is nested too deeply"),
    ("graphsaint", "role.json", in_json("va", lambda a: [*a, 0]), r"role.json: va and tr both select node 0"),
    (
        "graphsaint",
        "role.json",
        in_json("va", lambda a: [*a, 12]),
        r"va holds node 12 at \[3\]; nodes are 0 to 11",
    ),
    ("graphsaint", "role.json", in_json("te", lambda _: None), r"role.json: te is missing"),
    ("graphsaint", "role.json", lines('{"tr":'), r"role.json: is not JSON"),
    ("ogb-folder", "raw/edge.csv.gz", gz([0, 1], [1, 12]), r"edge.csv.gz: edge holds node 12 at \[1, 1\]"),
    ("ogb-folder", "raw/edge.csv.gz", gz([0, 1], [1, -2]), r"edge holds node -2"),
    ("ogb-folder", "raw/edge.csv.gz", gz([0, 1], [1]), r"edge.csv.gz: line 2 has 1 columns; the table has 2"),
    ("ogb-folder", "raw/edge.csv.gz", gz([0, 1], [1, "x"]), r"line 2, column 2: 'x' is not a whole number"),
    (
        "ogb-folder",
        "raw/node-feat.csv.gz",
        gz(*[[1, 2]] * 11),
        r"node-feat has shape \[11, 2\]; it must be \[12",
    ),
    (
        "ogb-folder",
        "raw/node-feat.csv.gz",
        gz(*[["nan", 2]] * 12),
        r"node-feat holds NaN or infinity at \[0, 0\]",
    ),
    ("ogb-folder", "raw/node-label.csv.gz", gz(*[[1.5]] * 12), r"node-label holds label 1.5 for node 0"),
    ("ogb-folder", "raw/num-node-list.csv.gz", gz([6], [6]), r"num-node-list lists 2 graphs"),
    ("ogb-folder", "raw/num-node-list.csv.gz", gz([10**15]), r"number nodes from 0 without gaps"),
    ("ogb-folder", "split/time/test.csv.gz", gz([0]), r"test and train both select node 0"),
    (
        "ogb-folder",
        "split/time/test.csv.gz",
        gz([11], [10]),
        r"test_mask selects node 10, which has no label",
    ),
    ("gnn-benchmark", "", in_npz("adj_indices", set_at(0, 12)), r"adj_indices holds column 12"),
    ("gnn-benchmark", "", in_npz("attr_data", set_at(0, NAN)), r"attr_data holds NaN"),
    ("gnn-benchmark", "", in_npz("labels", lambda a: a[:-1]), r"labels has shape \[11\]; it must be \[12\]"),
    ("heterophilous", "", in_npz("edges", set_at((0, 0), 12)), r"edges holds node 12"),
    ("heterophilous", "", in_npz("edges", lambda a: a.T), r"edges has shape .*; it must be \[any, 2\]"),
    ("heterophilous", "", in_npz("train_masks", lambda a: a[:1]), r"train_masks has splits 0 to 0; split=1"),
    ("heterophilous", "", in_npz("val_masks", lambda a: a | True), r"both select node"),
    ("wikics", "", in_json("features", lambda a: [*a[:-1], [1]]), r"features has rows of different lengths"),
    (
        "wikics",
        "",
        in_json("features", lambda a: [*a[:-1], [NAN] * 5]),
        r"features holds NaN or infinity at \[11",
    ),
    ("wikics", "", in_json("links", lambda a: [*a[:-1], [12]]), r"links holds node 12"),
    ("wikics", "", in_json("links", lambda a: a[:-1]), r"links must be 12 lists of nodes"),
    (
        "wikics",
        "",
        in_json("labels", lambda a: ["x", *a[1:]]),
        r"labels holds something that is not a number",
    ),
    ("wikics", "", lines("[]"), r"data.json: features is missing; WikiCS has features"),
    ("planetoid", "ind.tiny.test.index", lines("9", "7"), r"test.index: test.index lists 2 nodes; tx has 3"),
    ("planetoid", "ind.tiny.test.index", lines("9", "7", "3"), r"lists node 3, which allx \(7 rows\) holds"),
    ("planetoid", "ind.tiny.test.index", lines("9", "7", "9999"), r"lists node 9999"),
    ("edges", "edges.tsv", lines("0 1", "1 -3"), r"edges.tsv: edge 1, -3 \(1 rows after line 1\)"),
    ("edges", "edges.tsv", lines("0 1", "1 12"), r"edges holds node 12 at \[1, 1\]; nodes are 0 to 11"),
    ("edges", "edges.tsv", lines("0 1", "1 2 3"), r"edges.tsv: line 2 has 3 columns; the table has 2"),
    ("edges", "edges.tsv", lines("0 1 2 3"), r"an edge is source, target, weight"),
    ("edges", "edges.tsv", lines("0 1 nan"), r"edges weight holds NaN"),
    ("edges", "edges.tsv", lines("0 1", "word 2"), r"line 2, column 1: 'word' is not a number"),
    ("edges", "labels.csv", lines("0", "1"), r"labels\.csv: 2 labels for 12 nodes; a node without one"),
    ("edges", "labels.csv", lines(*["0,5", "0,4"]), r"labels names node 0 twice"),
    ("edges", "split.csv", lines(*["0"] * 11, "7"), r"split holds 7 for node 11; 0 is train"),
    ("mtx", "../graph.mtx", lines("%%MatrixMarket matrix array real general"), r"line 1 is not"),
    ("mtx", "../graph.mtx", lines("%%MatrixMarket matrix coordinate complex general"), r"is complex general"),
    ("mtx", "../graph.mtx", lines("%%MatrixMarket matrix coordinate pattern general", "2 3 1"), r"2 × 3"),
    (
        "mtx",
        "../graph.mtx",
        lines("%%MatrixMarket matrix coordinate pattern general", "12 12 2", "1 1"),
        r"has 1 entries, its header says 2",
    ),
    (
        "mtx",
        "../graph.mtx",
        lines("%%MatrixMarket matrix coordinate pattern general", "12 12 1", "0 1"),
        r"entry 1 is \(0, 1\); rows are 1 to 12",
    ),
]


@pytest.mark.parametrize("kind, file, change, words", CASES, ids=[f"{c[0]}-{c[3][:40]}" for c in CASES])
def test_a_mistake_is_one_line(kind: str, file: str, change: Change, words: str, tmp_path: Path) -> None:
    sparse = kind in ("gnn-benchmark", "planetoid")
    source = written(kind, tmp_path, example(directed=FORMATS[kind][2], sparse=sparse))
    path, comma, options = source.partition(",")
    change((Path(path).parent if file.startswith("..") else Path(path)) / file.removeprefix("../"))
    assert str(tmp_path) in says(f"{path}{comma}{options}", words)


@pytest.mark.parametrize("kind", FORMATS)
def test_truncation_and_damage_anywhere_are_clear_errors(kind: str, tmp_path: Path) -> None:
    """Every file of every format, cut short and with flipped bytes: a graph or one line, nothing else."""
    source = written(kind, tmp_path, example(sparse=kind in ("gnn-benchmark", "planetoid")))
    rng = np.random.default_rng(0)
    refused = 0
    for path in find_reader(source)[1].files():  # type: ignore[attr-defined]
        content = path.read_bytes()
        for _ in range(4):
            place = int(rng.integers(0, len(content)))
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(rng.integers(0, 8))
            for damaged in (content[:place], bytes(flipped)):
                path.write_bytes(damaged)
                refused += not readable(source)
        path.write_bytes(content)
    assert refused > 1
    open_graph(source)


def readable(source: str) -> bool:
    said = ""
    try:
        assert isinstance(open_graph(source), Graph)
    except UserError as error:
        said = str(error)
    assert "\n" not in said
    return not said


@settings(max_examples=40)
@given(
    content=st.binary(max_size=300),
    name=st.sampled_from(["g.npz", "g.pt", "g.json", "g.mtx", "edges.csv", "x.gz"]),
)
def test_noise_is_refused_by_every_reader(
    content: bytes, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("noise")
    (folder / name).write_bytes(content)
    (folder / "labels.csv").write_bytes(content)
    (folder / "features.csv").write_bytes(content)
    readable(str(folder / name))


@given(content=st.binary(max_size=200))
def test_a_restricted_pickle_of_noise(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("pickle") / "ind.x.graph"
    path.write_bytes(content)
    said = str(path)
    try:
        load_restricted(path)
    except UserError as error:
        said = str(error)
    assert "\n" not in said and str(path) in said


# Harmful files


class Harmful:
    """Pickles to a call."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_a_harmful_pickle_does_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    folder = Path(written("planetoid", tmp_path, example(sparse=True)))
    harmful = pickle.dumps(Harmful(proof), protocol=2)
    pickle.loads(harmful)
    assert proof.exists()  # it would do harm
    proof.rmdir()
    (folder / "ind.tiny.allx").write_bytes(harmful)
    says(folder, r"ind.tiny.allx: names (posix|os).mkdir, which no graph needs; it is not loaded")
    assert not proof.exists()


def test_a_harmful_torch_file_does_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    torch.save({"edge_index": Harmful(proof)}, tmp_path / "graph.pt")
    says(
        tmp_path / "graph.pt", r"graph.pt: names \S*mkdir, which could run code; save a dictionary of tensors"
    )
    assert not proof.exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"ccollections\ndefaultdict\n(cos\nsystem\ntR.",
        b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I9999999999\ntS'b'\ntR(I1\n(I9999999999\ntcnumpy\n"
        b"dtype\n(S'f8'\nI0\nI1\ntRI00\nS'abc'\ntb.",
        b"P1\n.",
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo of two thousand million entries
        b"\x80\x03B\xff\xff\xff\x7fabc.",  # as many bytes, of which three are there
    ],
)
def test_pickles_that_ask_for_more_are_refused(code: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ind.x.graph"
    path.write_bytes(code)
    with pytest.raises(UserError, match=r"ind.x.graph: (names|is damaged|refers)"):
        load_restricted(path)


def test_an_array_of_objects_in_an_archive_is_not_unpickled(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    path = tmp_path / "graph.npz"
    np.savez(path, x=np.array([Harmful(proof)], dtype=object))
    says(path, r"graph.npz: x is a pickled object array; save it as plain numbers")
    assert not proof.exists()


def npy_header(shape: str) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (3,)})
    return file.getvalue().replace(b"(3,), }", shape.encode() + b", }").replace(b"(3,)", shape.encode())


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BOMB_BYTES", 1 << 20)
    path = tmp_path / "graph.npz"
    np.savez_compressed(path, x=np.zeros((1000, 1000)))
    says(path, r"graph.npz: [\d,]+ bytes unpack to 8,000,[\d,]+ \(a zip bomb\?\)")
    table = tmp_path / "edges.csv.gz"
    table.write_bytes(gzip.compress(b"0,1\n" * (1 << 20)))
    (tmp_path / "labels.csv").write_text("0\n1\n")
    monkeypatch.setattr(text, "PIECE", 1 << 16)
    says(f"{table},features=degree", r"edges.csv.gz: [\d,]+ bytes unpack to .* bomb")
    with zipfile.ZipFile(tmp_path / "data.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("edges.csv", b"0" * (1 << 22))
    says(tmp_path / "data.zip", r"data.zip: .* bomb")


def test_a_header_that_lies_about_its_size(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("x.npy", npy_header("(99999999999999,)") + b"\0" * 24)
    says(path, r"graph.npz: x is damaged \(its header says 99999999999999")


@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">i8", "|b1"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_arrays_of_a_pickle_keep_shape_order_and_values(dtype: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "ind.x.x"
    for array in (
        np.arange(6).reshape(2, 3).astype(dtype),
        np.asfortranarray(np.arange(6).reshape(2, 3), dtype),
    ):
        path.write_bytes(pickle.dumps(array, protocol))
        np.testing.assert_array_equal(load_restricted(path), array)


def test_a_name_in_an_archive_that_is_no_text(tmp_path: Path) -> None:
    path = Path(written("npz", tmp_path, example()))
    content = bytearray(path.read_bytes())
    entry = content.rfind(b"PK\x01\x02")
    content[entry + 9] |= 0x08  # names are UTF-8, it says
    content[entry + 46] = 0xBA
    path.write_bytes(content)
    assert not readable(str(path))


def test_a_header_that_never_ends(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, \n"
    path = tmp_path / "features.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(12))
    with pytest.raises(UserError, match=r"features.npy: is damaged .*; write the file again"):
        archive.read_npy(path)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LONGEST_LINE", 1000)
    monkeypatch.setattr(text, "PIECE", 500)
    (tmp_path / "edges.csv").write_text("1" * 5000)
    (tmp_path / "labels.csv").write_text("0\n1\n")
    says(f"{tmp_path / 'edges.csv'},features=degree", r"edges.csv: line 1 is longer than 1,000 bytes")


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "link"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_path_that_escapes_its_archive(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path / "home"))
    path = tmp_path / f"data.{kind}"
    if kind == "zip":
        info = zipfile.ZipInfo(name)
        info.external_attr = (0o120777 if name == "link" else 0o100644) << 16
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("fine", b"1")
            packed.writestr(info, b"/etc/passwd")
    else:
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo(name)
            if name == "link":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
    says(path, r"(would land outside of its folder|is a link).*not unpacked")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


def test_a_full_disk_while_spooling_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written("ogb-folder", tmp_path, example())
    spooled = tmp_path / "spool"
    spooled.mkdir()
    monkeypatch.setenv("TMPDIR", str(spooled))

    class Full:
        def write(self, _: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    monkeypatch.setattr(spool.tempfile, "TemporaryFile", lambda **_: Full())
    says(source, r"node-feat.csv.gz: cannot be kept in .*No space left on device")
    monkeypatch.undo()
    open_graph(source)
    assert not list(spooled.iterdir())


@pytest.mark.parametrize(
    "source, words",
    [
        ("{folder}/nothing.csv", r"does not exist"),
        ("{folder}/file.xyz", r"no reader knows this file \(\.xyz\); name its format"),
        ("{folder}", r"no reader knows this folder"),
        ("edges:{folder}/edges.csv,label=x", r"has no option 'label'; its options: .*did you mean labels"),
        ("edges:{folder}/edges.csv,undirected=maybe", r"undirected='maybe' must be true or false"),
        ("edges:{folder}/edges.csv,seed=x", r"seed='x' is not a whole number"),
        ("edges:{folder}/edges.csv,labels=none.csv", r"file 'none.csv' does not exist"),
        ("edges:{folder}/edges.csv", r"no labels; put labels.csv"),
        ("graphsaint:{folder}", r"adj_full.npz is missing; a GraphSAINT folder holds"),
        ("planetoid:{folder}", r"must hold one ind.\*.graph, it holds none"),
        ("ogb-folder:{folder}", r"split: must hold one split|is missing"),
    ],
)
def test_sources_that_mean_nothing(source: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file.xyz").write_text("1")
    (tmp_path / "edges.csv").write_text("0,1")
    (tmp_path / "other").mkdir()
    chosen = tmp_path / "other" if source == "{folder}" else tmp_path
    says(source.format(folder=chosen), words)
