"""Unpacks downloads (`.zip`, `.tar`, `.tar.gz`, `.tgz`) to a folder that appears only when it is complete.

A member that would land outside of the folder, a link, a device and a bomb are refused before anything is
written.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sancus.datasets.archive import check_ratio, line
from sancus.errors import UserError

DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,  # of zipfile, for a member without a name
    OverflowError,
)
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
MOST_MEMBERS = 100_000


def is_archive(path: Path) -> bool:
    """By its suffix; an `.npz` is read as it is."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def unpack(path: Path, target: Path) -> None:
    """The content of an archive as the folder `target`; a single folder at its top is `target` itself."""
    with unpacking(target) as partial:
        try:
            if path.suffix == ".zip":
                _unzip(path, partial)
            else:
                _untar(path, partial)
        except DAMAGE as error:
            raise UserError(f"{path}: is damaged ({line(error)}); download it again") from error


@contextlib.contextmanager
def unpacking(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` at the end, or vanishes."""
    partial = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        yield partial
        inside = list(partial.iterdir())
        whole = inside[0] if len(inside) == 1 and inside[0].is_dir() else partial
        os.replace(whole, target)
    except OSError as error:
        raise UserError(
            f"cannot unpack to {target}: {error.strerror}; free space or set SANCUS_HOME"
        ) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _unzip(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check(path, [(info.filename, info.file_size) for info in members])
        for info in members:
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                raise UserError(f"{path}: {info.filename} is a link; it is not unpacked")
        archive.extractall(folder, members)


def _untar(path: Path, folder: Path) -> None:
    with tarfile.open(path) as archive:
        members: list[tarfile.TarInfo] = []
        for info in archive:
            members.append(info)
            if len(members) % 1000 == 0:
                _check(path, [(info.name, info.size) for info in members])
        _check(path, [(info.name, info.size) for info in members])
        for info in members:
            if not (info.isfile() or info.isdir()):
                raise UserError(f"{path}: {info.name} is a link or a device; it is not unpacked")
        for info in members:
            _write_member(archive, info, folder / info.name)


def _write_member(archive: tarfile.TarFile, info: tarfile.TarInfo, target: Path) -> None:
    """Content alone, no owner, mode or time; `filter="data"` would do so, but not in every Python 3.11."""
    (target if info.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(info) if info.isfile() else None
    if content is not None:
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file)


def _check(path: Path, members: list[tuple[str, int]]) -> None:
    if len(members) > MOST_MEMBERS:
        raise UserError(f"{path}: has more than {MOST_MEMBERS:,} members; it is no dataset")
    check_ratio(path, sum(size for _, size in members), path.stat().st_size)
    for name, _ in members:
        pure = PurePosixPath(name.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts or ":" in name:
            raise UserError(f"{path}: member {name!r} would land outside of its folder; it is not unpacked")
