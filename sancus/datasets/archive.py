"""Reads `.npz` and `.npy` files without trusting them: no pickle, no zip bomb, no header that lies.

A large member that is stored without compression (what `numpy.savez` writes) is mapped, not read, so that
features need not fit in memory. A compressed one is read, if the size that it claims is plausible.
"""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sancus.datasets.fields import Fields
from sancus.errors import UserError

Array = npt.NDArray[Any]

DAMAGE = (
    tokenize.TokenError,  # of numpy, for the header of an array
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    UnicodeDecodeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
MAP_FROM = 1 << 26  # bytes: a stored member of this size or more is mapped
BOMB_BYTES = 1 << 30  # unpacked size from which a suspicious ratio is refused
BOMB_RATIO = 200  # unpacked to packed
LOCAL_HEADER = 30  # bytes of a zip's local file header before name and extra field


def read_npz(path: Path, names: Collection[str]) -> Fields:
    """The arrays `names` of a file, as far as it has them; other members are not opened."""
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: is not a .npz archive, or is truncated; write it again with numpy.savez")
    arrays: dict[str, Array] = {}
    field = "file"
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            infos = {name: members[name] for name in names if name in members}
            check_ratio(path, sum(info.file_size for info in infos.values()), path.stat().st_size)
            for field, info in infos.items():
                arrays[field] = _read_member(path, archive, info)
    except ValueError as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise UserError(f"{path}: {field} is a pickled object array; save it as plain numbers") from error
        raise UserError(f"{path}: {field} is damaged ({line(error)}); write the file again") from error
    except DAMAGE as error:
        raise UserError(f"{path}: {field} is damaged ({line(error)}); write the file again") from error
    return Fields(str(path), arrays)


def read_npy(path: Path) -> Array:
    """One `.npy`, mapped; its header is checked against the size of the file."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error) or "Python object" in str(error):
            raise UserError(f"{path}: is a pickled object array; save it as plain numbers") from error
        raise UserError(f"{path}: is damaged ({line(error)}); write the file again") from error
    except DAMAGE as error:
        raise UserError(f"{path}: is damaged ({line(error)}); write the file again") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path}: is an archive of several arrays; give a .npy with one")
    return array


def members_of(path: Path) -> set[str]:
    """Names of the arrays of a `.npz`; empty where the file is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except DAMAGE:
        return set()


def check_ratio(path: Path, unpacked_size: int, packed_size: int) -> None:
    """Raise a `UserError` where so few bytes unpack to so many that it looks like a zip bomb."""
    if unpacked_size > BOMB_BYTES and unpacked_size > BOMB_RATIO * max(1, packed_size):
        raise UserError(
            f"{path}: {packed_size:,} bytes unpack to {unpacked_size:,} (a zip bomb?); save it uncompressed"
        )


def line(error: Exception) -> str:
    """An exception's text as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(file)
        start = file.tell()
        if dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if count * dtype.itemsize != info.file_size - start:
            raise ValueError(f"its header says {count} × {dtype}, it holds {info.file_size - start} bytes")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size >= MAP_FROM:
            offset = _data_offset(path, info) + start
            return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
    with archive.open(info) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"has .npy version {version}; save it with a current numpy")


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin in the archive (its local header may differ from the directory's)."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER)
    if len(header) < LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("no local header")
    name, extra = struct.unpack("<HH", header[26:30])
    return int(info.header_offset) + LOCAL_HEADER + int(name) + int(extra)
