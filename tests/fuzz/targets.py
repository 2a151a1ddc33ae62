"""What is fuzzed: everything that reads bytes of somebody else. Any bytes must end in peace.

In peace means: it returns, or raises what a user is meant to see (`UserError` and its kin, one line), or what
ranks say of a message that is not the one they expect. Any other exception is a finding.

Where a format is a set of files, or an archive with checksums, the bytes are *packed*: pieces with `CUT`
between them, of which the target makes whole archives and manifests, so that changes reach what is inside.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sancus.errors import UserError

CUT = b"\n--cut--\n"
MOST = 1 << 16  # bytes of an input
Target = Callable[[bytes], None]
NPZ_FIELDS = ("indptr", "indices", "x", "y", "classes", "train_mask", "val_mask", "test_mask")
RUN_FILES = ("run.json", "metrics.jsonl")
WIKICS = "data.json"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sancus-fuzz-") as name:
        yield Path(name)


def _pieces(data: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """Named pieces of packed bytes; those that lack are left out."""
    return dict(zip(names, data.split(CUT), strict=False))


def _open(name: str, data: bytes, text: str = "{path}") -> None:
    """Read a graph from a file with this content, as a user names it."""
    from sancus.datasets.open import open_graph

    with _folder() as folder, contextlib.suppress(UserError):
        path = folder / name
        path.write_bytes(data)
        open_graph(text.format(path=path, folder=folder))


def npz(data: bytes) -> None:
    """The arrays of an `.npz` graph."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in _pieces(data, NPZ_FIELDS).items():
            file.writestr(f"{name}.npy", content)
    _open("graph.npz", archive.getvalue())


def archive(data: bytes) -> None:
    """An `.npz`, byte by byte: a damaged archive."""
    _open("graph.npz", data)


def edges(data: bytes) -> None:
    """An edge list, and its labels beside it."""
    from sancus.datasets.open import open_graph

    with _folder() as folder, contextlib.suppress(UserError):
        for name, content in _pieces(data, ("edges.csv", "labels.csv")).items():
            (folder / name).write_bytes(content)
        open_graph(f"{folder / 'edges.csv'},labels={folder / 'labels.csv'}")


def matrix_market(data: bytes) -> None:
    """A MatrixMarket file, and the labels beside it."""
    from sancus.datasets.open import open_graph

    with _folder() as folder, contextlib.suppress(UserError):
        for name, content in _pieces(data, ("graph.mtx", "labels.csv")).items():
            (folder / name).write_bytes(content)
        open_graph(f"{folder / 'graph.mtx'},labels={folder / 'labels.csv'}")


def wikics(data: bytes) -> None:
    """WikiCS's one JSON file."""
    _open(WIKICS, data)


def pickles(data: bytes) -> None:
    """A pickle as Planetoid's, through the restricted unpickler."""
    from sancus.datasets.restricted import load_restricted

    with _folder() as folder, contextlib.suppress(UserError):
        path = folder / "ind.any.x"
        path.write_bytes(data)
        load_restricted(path)


def zips(data: bytes) -> None:
    """A `.zip` that is unpacked."""
    _unpack("download.zip", data)


def tars(data: bytes) -> None:
    """A `.tar` that is unpacked."""
    _unpack("download.tar", data)


def _unpack(name: str, data: bytes) -> None:
    from sancus.datasets.unpack import unpack

    with _folder() as folder:
        inside = folder / "inside"
        inside.mkdir()
        (inside / name).write_bytes(data)
        with contextlib.suppress(UserError):
            unpack(inside / name, inside / "out")
        assert [path.name for path in folder.iterdir()] == ["inside"], "something left the folder"


def shards(data: bytes) -> None:
    """A shard directory: the facts of its manifest, and the arrays of a rank, all with right checksums."""
    import xxhash

    from sancus.graphs.shards import checksum_of_facts, manifest_text, open_shard

    facts, *arrays = data.split(CUT)
    with _folder() as folder, contextlib.suppress(UserError):
        (folder / "rank-0").mkdir()
        try:
            manifest = json.loads(facts)
        except (ValueError, RecursionError):
            manifest = None
        text = facts
        if isinstance(manifest, dict) and isinstance(manifest.get("checksums"), dict):
            for name, content in zip(manifest["checksums"], arrays, strict=False):
                if name.startswith("rank-0/") and name.count("/") == 1 and "\0" not in name:
                    with contextlib.suppress(OSError, ValueError):
                        (folder / name).write_bytes(content)
                    manifest["checksums"][name] = xxhash.xxh3_128_hexdigest(content)
            manifest.pop("checksum", None)
            with contextlib.suppress(ValueError, RecursionError):
                whole = manifest | {"checksum": checksum_of_facts(manifest)}
                text = manifest_text(whole).encode(errors="replace")
        (folder / "manifest.json").write_bytes(text)
        open_shard(folder, 0)


def checkpoints(data: bytes) -> None:
    """A checkpoint that is whole, but for what is in its files: its settings, and a run that resumes."""
    from sancus.config.resolve import make_config, settings_of_run
    from sancus.runs.checkpoints import durable, names, reader

    manifest, state = [*data.split(CUT), b""][:2]
    with _folder() as run, contextlib.suppress(UserError):
        directory = run / "epoch-00000003"
        directory.mkdir()
        files = dict.fromkeys(names.SHARED, b"") | {"state.json": state}
        sums = {name: durable.checksum(content) for name, content in files.items()}
        whole = {names.MANIFEST: manifest or durable.manifest_text(sums)}
        for name, content in (files | whole).items():
            (directory / name).write_bytes(content)
        make_config(settings_of_run(reader.read_settings(run)))


def runs(data: bytes) -> None:
    """The files of a run, as a report, its bill and a comparison read them."""
    from sancus.report.page import write_report
    from sancus.report.run_reader import read
    from sancus.report.summary import bill, breakdown, result
    from sancus.runs.belongings import in_the_way

    with _folder() as run, contextlib.suppress(UserError):
        for name, content in _pieces(data, RUN_FILES).items():
            (run / name).write_bytes(content)
        record = read(run).run
        bill(record), breakdown(record), result(record)
        write_report(run)
        in_the_way(run, kept=True)


def headers(data: bytes) -> None:
    """A message that arrives: it is used only where it is, byte for byte, the one that was expected."""
    import torch

    from sancus.comm.errors import DisagreementError
    from sancus.comm.header import Payload, Plain, blank, seal, unseal
    from sancus.comm.ledger import Stream

    content = torch.arange(6, dtype=torch.float32).view(3, 2)
    plain = Plain("all-gather", 7, 5, torch.float32, (2,)).header(3, 1)
    payload = Payload(9, Stream(1, "backward", 2), 4).header(content, 2)
    for header in (plain, payload):
        message, out = blank([header], content.device), torch.zeros_like(content)
        right = seal([content], [header], content.device)
        given = bytearray(data[: len(message)])
        if data[:1] == b"=":  # a change of a few bytes of the right message
            given = bytearray(right.numpy().tobytes())
            for place, change in zip(data[1::2], data[2::2], strict=False):
                given[place % len(given)] ^= change
        message[: len(given)] = torch.frombuffer(given or bytearray(1), dtype=torch.uint8)[: len(given)]
        try:
            unseal(message, [header], out, 0)
        except DisagreementError:
            continue
        assert torch.equal(message[header.overhead :], out.view(-1).view(torch.uint8))
        assert message[: header.overhead - 8].equal(right[: header.overhead - 8]), "another header was used"


def settings(data: bytes) -> None:
    """A file for `--config`, and a user's specs of plug-ins on the command line."""
    from sancus.config.resolve import make_config, read_config

    with _folder() as folder, contextlib.suppress(UserError):
        path = folder / "config.json"
        path.write_bytes(data)
        make_config(read_config(path))


def flags(data: bytes) -> None:
    """A command line, a flag a line."""
    from cyclopts import CycloptsError

    from sancus.cli.train import read_flags

    words = data.decode(errors="replace").replace("\0", "").split("\n")
    # A name with a dot and a colon would import a module of that name: that is what it is for.
    if not any("." in word and ":" in word for word in words):
        with contextlib.suppress(UserError, CycloptsError, SystemExit):
            read_flags(words)


TARGETS: dict[str, Target] = {
    target.__name__.replace("_", "-"): target
    for target in (
        npz,
        archive,
        edges,
        matrix_market,
        wikics,
        pickles,
        zips,
        tars,
        shards,
        checkpoints,
        runs,
        headers,
        settings,
        flags,
    )
}
