"""Tables of numbers in text: `.csv`, `.tsv`, `.txt`, each also as `.gz`; read in pieces, checked by line.

The separator is the one that the first line with data has: a comma, a semicolon, a tab, or blanks. Lines that
begin with `#` or `%` are comments (SNAP, Matrix Market); a first line of words is a header.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sancus.datasets.archive import check_ratio
from sancus.errors import UserError

Array = npt.NDArray[Any]

PIECE = 1 << 23  # bytes that are parsed at a time
LONGEST_LINE = 1 << 26
SUFFIXES = (".csv", ".tsv", ".txt")
COMMENTS = (b"#", b"%")


@dataclass(frozen=True)
class Piece:
    """Some rows of a table, `[n, columns]`, and the number of the line that the first stands on."""

    rows: Array
    line: int


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table in text."""
    return Path(path.name.removesuffix(".gz")).suffix in SUFFIXES


def read_table(path: Path, dtype: type[Any], columns: int | None = None) -> Array:
    """The whole table `[rows, columns]`."""
    pieces = [piece.rows for piece in table_pieces(path, dtype, columns)]
    return np.concatenate(pieces) if pieces else np.zeros((0, columns or 1), dtype)


def table_pieces(
    path: Path, dtype: type[Any], columns: int | None = None, skip: int = 0, *, comments: bool = True
) -> Iterator[Piece]:
    """Pieces of a table of numbers; a line that is not `columns` numbers (those of the first) is an error."""
    separator: bytes | None = None
    first = True
    for line, block in _blocks(path, skip):
        lines = block.split(b"\n") if first or comments else []
        if first:
            start = next((place for place, text in enumerate(lines) if _holds_data(text)), None)
            if start is None:
                continue
            separator = _separator(lines[start])
            if not _numeric(lines[start], separator):
                lines[start] = b""  # a header
            columns = columns or _count(next(filter(_holds_data, lines), lines[start]), separator)
        if comments and (first or any(mark in block for mark in COMMENTS)):
            block = b"\n".join(text if _holds_data(text) else b"" for text in lines)
        elif first:
            block = b"\n".join(lines)
        first = False
        rows = _parse(path, line, block, separator, dtype, columns)
        if len(rows):
            yield Piece(rows, line)


def open_text(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked where it ends in `.gz`."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _blocks(path: Path, skip: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file in pieces, each with the number of its first line; `skip` lines are left out."""
    line, rest, unpacked_size = 1, b"", 0
    file_size = path.stat().st_size
    try:
        with open_text(path) as file:
            while piece := file.read(PIECE):
                unpacked_size += len(piece)
                check_ratio(path, unpacked_size, file_size)
                whole, newline, rest = (rest + piece).rpartition(b"\n")
                if len(rest) > LONGEST_LINE:
                    raise UserError(
                        f"{path}: line {line} is longer than {LONGEST_LINE:,} bytes; is it a table?"
                    )
                if not newline:
                    continue
                lines = whole.count(b"\n") + 1
                to_skip = max(0, skip + 1 - line)
                if to_skip < lines:
                    yield line + to_skip, whole.split(b"\n", to_skip)[to_skip] if to_skip else whole
                line += lines
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"{path}: is damaged or truncated ({reason}); copy it again") from error
    if rest and line > skip:
        yield line, rest


def _parse(
    path: Path, line: int, block: bytes, separator: bytes | None, dtype: type[Any], columns: int | None
) -> Array:
    if not block.strip():
        return np.zeros((0, columns or 1), dtype)
    try:
        text = block.decode("ascii")
        delimiter = separator.decode() if separator else None
        rows = np.loadtxt(io.StringIO(text), dtype, comments=None, delimiter=delimiter, ndmin=2)
        if columns is None or rows.shape[1] == columns:
            return rows
    except (ValueError, OverflowError, MemoryError):
        pass
    raise _first_wrong(path, line, block, separator, dtype, columns)


def _first_wrong(
    path: Path, line: int, block: bytes, separator: bytes | None, dtype: type[Any], columns: int | None
) -> UserError:
    """What is wrong with the first line that cannot be read."""
    kind = "a whole number" if issubclass(dtype, np.integer) else "a number"
    for number, text in enumerate(block.split(b"\n"), line):
        if not text.strip():
            continue
        cells = text.split(separator)
        if columns is not None and len(cells) != columns:
            return UserError(f"{path}: line {number} has {len(cells)} columns; the table has {columns}")
        for place, cell in enumerate(cells, 1):
            try:
                dtype(cell.decode("ascii").strip())
            except (ValueError, OverflowError):
                excerpt = cell.decode("ascii", "replace").strip()[:40]
                return UserError(f"{path}: line {number}, column {place}: {excerpt!r} is not {kind}")
    return UserError(f"{path}: lines {line} and after cannot be read as a table of numbers")


def _holds_data(text: bytes) -> bool:
    content = text.lstrip()
    return bool(content) and not content.startswith(COMMENTS)


def _separator(text: bytes) -> bytes | None:
    """None is any run of blanks."""
    return next((mark for mark in (b",", b";", b"\t") if mark in text), None)


def _count(text: bytes, separator: bytes | None) -> int:
    return max(1, len(text.split(separator)))


def _numeric(text: bytes, separator: bytes | None) -> bool:
    try:
        for cell in text.split(separator):
            float(cell)
    except ValueError:
        return False
    return True
