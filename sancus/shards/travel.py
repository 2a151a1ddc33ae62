"""Shards without a shared disk: every rank's part, from host to host over the ranks' own transport.

Who lacks which file is found by the checksums in the manifest, so a file crosses once, only where it is
needed, and nothing crosses where hosts share a disk. A file is written under another name, checked, and then
renamed; the manifest comes last, as in a folder that `sancus partition` wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import xxhash

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, Entry
from sancus.errors import UserError
from sancus.graphs.shard_files import checksum_of_file
from sancus.graphs.shards import MANIFEST, UnusableShardsError, read_manifest

PIECE = 1 << 22  # bytes of a message
SHARDS = Entry("probe")  # in no bill of a run


def push_shards(group: Group, directory: str | Path) -> int:
    """Every rank gets its own part of what rank 0 has in its folder; the bytes that crossed.

    All ranks call it, each with the folder of its own host. As `sancus shards push`.
    """
    return _move(group, Path(directory), giver=0)


def pull_shards(group: Group, directory: str | Path) -> int:
    """Rank 0 gets every rank's part, so that its folder is whole; the bytes that crossed."""
    return _move(group, Path(directory), giver=None)


def _move(group: Group, directory: Path, giver: int | None) -> int:
    """Part `i` goes from `giver` to rank `i`, or without a giver from rank `i` to rank 0."""
    text = _manifest_of_all(group, directory)
    files = _files(text)
    if len(files) != group.size:
        raise UserError(
            f"{directory} holds {len(files)} parts for {group.size} ranks; start one rank for each part"
        )
    mine = _whole(directory, files)
    names = sorted(mine)
    here = torch.tensor([mine[name] for name in names], dtype=torch.uint8)
    everyone = group.all_gather(here, AGREEMENT)
    moved = 0
    for part in range(group.size):
        source, target = (part, 0) if giver is None else (giver, part)
        for name in sorted(files[part]):
            place = names.index(name)
            if source == target or everyone[target, place]:
                continue
            if not everyone[source, place]:
                raise UserError(f"{directory}/{name} is missing or damaged on rank {source}; partition again")
            if group.rank == source:
                moved += _give(group, directory / name, target)
            elif group.rank == target:
                _take(group, directory / name, source, files[part][name])
    if not (directory / MANIFEST).exists():
        _publish(directory / MANIFEST, text)
    return int(group.all_gather(torch.tensor([moved]), AGREEMENT).sum())


def _manifest_of_all(group: Group, directory: Path) -> bytes:
    """The manifest of the lowest rank that has one; all that have one must have the same."""
    try:
        read_manifest(directory)
        text = (directory / MANIFEST).read_bytes()
    except UnusableShardsError:
        text = b""
    digest = torch.frombuffer(bytearray(xxhash.xxh3_128_digest(text)), dtype=torch.uint8)
    size = torch.tensor([len(text)])
    sizes, digests = group.all_gather(size, AGREEMENT)[:, 0], group.all_gather(digest, AGREEMENT)
    having = [rank for rank in range(group.size) if sizes[rank]]
    if not having:
        raise UserError(f"{directory} holds no shards on any rank; write them with sancus partition")
    first = having[0]
    for rank in having:
        if not torch.equal(digests[rank], digests[first]):
            raise UserError(
                f"{directory} holds other shards on rank {rank} than on rank {first}; "
                "choose another folder there"
            )
    content = torch.empty(int(sizes[first]), dtype=torch.uint8)
    if group.rank == first:
        content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    group.broadcast(content, first, SHARDS).wait()
    return content.numpy().tobytes()


def _files(text: bytes) -> list[dict[str, str]]:
    """The checksum of every file, for every part."""
    manifest = json.loads(text)
    parts: list[dict[str, str]] = [{} for _ in manifest["offsets"][1:]]
    for name, checksum in manifest["checksums"].items():
        parts[int(name.partition("/")[0].removeprefix("rank-"))][name] = checksum
    return parts


def _whole(directory: Path, files: list[dict[str, str]]) -> dict[str, bool]:
    """Which files are here as they were written."""

    def is_whole(name: str, checksum: str) -> bool:
        try:
            return checksum_of_file(directory / name) == checksum
        except OSError:
            return False

    return {name: is_whole(name, checksum) for part in files for name, checksum in part.items()}


def _give(group: Group, path: Path, target: int) -> int:
    """Send a file in pieces; its size."""
    size = path.stat().st_size
    group.send(torch.tensor([size]), target, SHARDS).wait()
    with path.open("rb") as file:
        for length in _pieces(size):
            piece = torch.frombuffer(bytearray(file.read(length)), dtype=torch.uint8)
            group.send(piece, target, SHARDS).wait()
    return size


def _take(group: Group, path: Path, source: int, checksum: str) -> None:
    """Receive a file, and give it its name where it is what was written."""
    size = torch.zeros(1, dtype=torch.int64)
    group.receive(size, source, SHARDS).wait()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        for length in _pieces(int(size)):
            piece = torch.empty(length, dtype=torch.uint8)
            group.receive(piece, source, SHARDS).wait()
            file.write(piece.numpy().tobytes())
    if checksum_of_file(partial) != checksum:
        partial.unlink()
        raise UserError(
            f"{path} did not arrive as rank {source} has it; its disk changes it: partition again"
        )
    os.replace(partial, path)


def _pieces(size: int) -> Iterator[int]:
    """The lengths of the messages of a file."""
    for start in range(0, size, PIECE):
        yield min(PIECE, size - start)


def _publish(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(text)
    os.replace(partial, path)
