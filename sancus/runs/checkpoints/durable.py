"""Directories that appear on disk whole or not at all, whenever the process dies.

Files are written under a name that nobody reads, and synced; the directory is synced and renamed, and its
parent is synced. A manifest, written last, holds the xxhash of every file and has exactly one valid spelling,
so any flipped or missing byte is noticed; its own checksum is in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import xxhash

from sancus.runs.checkpoints.names import MANIFEST, OLD, PARTIAL, is_ours


def checksum(content: bytes) -> str:
    """128 bits of a file's content."""
    return xxhash.xxh3_128_hexdigest(content)


def fresh_name(target: str) -> str:
    """A new name to write under, in the same folder as `target`; readers pass such names over."""
    return f"{PARTIAL}{target}-{uuid.uuid4().hex[:8]}"


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and return when its content is on the disk."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(number, left) :]
        os.fsync(number)
    finally:
        os.close(number)


def manifest_text(checksums: Mapping[str, str]) -> bytes:
    """The manifest of files and their checksums, as its one valid spelling, with a checksum of itself."""
    said = dict(sorted(checksums.items()))
    return json.dumps(said | {MANIFEST: checksum(json.dumps(said).encode())}, indent=1).encode()


def read_manifest(directory: Path) -> dict[str, str] | None:
    """File names and checksums; None where there is no valid manifest."""
    try:
        text = (directory / MANIFEST).read_bytes()
        content = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        return None
    content.pop(MANIFEST, None)
    return content if manifest_text(content) == text else None


def read_checked(path: Path, expected: str) -> bytes | None:
    """The content of a file; None where it is missing or other than it was."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if checksum(content) == expected else None


def publish(partial: Path, target: Path) -> None:
    """Give a directory whose files are written and synced its name; what had it before is gone."""
    sync_directory(partial)
    if target.exists():
        retire(target)
    os.rename(partial, target)
    sync_directory(target.parent)


def retire(directory: Path) -> None:
    """Remove a directory without ever showing a part of it under its name."""
    gone = directory.with_name(f"{OLD}{directory.name}-{uuid.uuid4().hex[:8]}")
    os.rename(directory, gone)
    _remove(gone)


def sweep(folder: Path, keep: str = "") -> None:
    """Remove what writers that died have left, but for the directory named `keep`."""
    for start in (PARTIAL, OLD):
        for leftover in folder.glob(f"{start}*"):
            if leftover.name != keep:
                _remove(leftover)


def _remove(directory: Path) -> None:
    """Remove our files of a directory, and then itself; a file that somebody else put there stays."""
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if is_ours(path.name):
                path.unlink(missing_ok=True)
        directory.rmdir()


def sync_directory(directory: Path) -> None:
    """Return when the names in a directory are on the disk too: syncing a file does not sync its name."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
