"""Tables with named columns, of numbers or of words: text, Parquet, frames of pandas, Polars and Arrow.

None of these libraries is imported for a frame: it is recognised by its attributes. Parquet needs pyarrow.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.datasets.text import COMMENTS, is_table, open_text
from sancus.errors import UserError

Array = npt.NDArray[Any]
Columns = dict[str, Array]  # equally long; numbers (NaN: blank), or words (an empty one: blank)
PARQUET = ".parquet"
SEPARATORS = ",;\t"


def is_parquet(path: Path) -> bool:
    """Whether a file's name says that it is Parquet."""
    return path.suffix == PARQUET


def read_columns(path: Path, default: Sequence[str], known: frozenset[str]) -> Columns:
    """The columns of a table. Where its first line names none, the first ones have the `default` names.

    A first line is taken as names where a word of it is among `known`, or stands over a column of numbers.
    """
    if is_parquet(path):
        return _read_parquet(path)
    if not is_table(path):
        raise UserError(f"{path}: is no table; give .csv, .tsv, .txt (also .gz) or {PARQUET}")
    try:
        with open_text(path) as file:
            text = file.read().decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read as text ({reason}); save it as UTF-8") from error
    lines = [line for line in text.splitlines() if not line.encode().lstrip().startswith(COMMENTS)]
    first = next((line for line in lines if line.strip()), "")
    mark = next((mark for mark in SEPARATORS if mark in first), None)
    rows = list(_split(lines, mark))
    while rows and rows[-1] in ([], [""]):
        rows.pop()
    if not rows:
        return {}
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width and not (width == 1 and not row):
            raise UserError(f"{path}: row {number} has {len(row)} columns; the table has {width}")
    cells = [[row[place].strip() if row else "" for row in rows] for place in range(width)]
    columns = [_typed(column[1:]) for column in cells]
    heads = [column[0] for column in cells]
    words = [not _is_number(head) for head in heads]
    named = any(head.lower() in known for head in heads) or (
        all(words) and any(column.dtype.kind in "iuf" and len(column) for column in columns)
    )
    if named:
        return _named(str(path), heads, columns)
    names = [*default, *(f"column {place + 1}" for place in range(len(default), width))][:width]
    return _named(str(path), names, [_typed(column) for column in cells])


def columns_of(table: Any, what: str) -> Columns:
    """The columns of a frame: pandas, Polars, Arrow, or a dictionary of arrays."""
    if isinstance(table, Mapping):
        names, column = list(table), table.__getitem__
    elif hasattr(table, "column_names") and hasattr(table, "column"):
        names, column = list(table.column_names), table.column
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        names, column = list(table.columns), table.__getitem__
    else:
        raise UserError(
            f"{what} is a {type(table).__name__}; give a frame of pandas, Polars or Arrow, or a dict"
        )
    arrays = [_plain(column(name)) for name in names]
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise UserError(
            f"{what} has columns of {' and '.join(map(str, sorted(lengths)))} rows; make them equal"
        )
    return _named(what, [str(name) for name in names], arrays)


def _named(what: str, names: Sequence[str], columns: Sequence[Array]) -> Columns:
    for name in names:
        if list(names).count(name) > 1:
            raise UserError(f"{what}: two columns are called {name!r}; rename one")
    return dict(zip(names, columns, strict=True))


def _read_parquet(path: Path) -> Columns:
    if find_spec("pyarrow") is None:
        raise UserError(f"{path}: Parquet needs pyarrow; pip install 'sancus[tables]', or save it as .csv")
    import pyarrow
    from pyarrow import parquet

    try:
        return columns_of(parquet.read_table(path), str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: is not Parquet ({' '.join(str(error).split())[:100]})") from error


def _split(lines: list[str], mark: str | None) -> Any:
    if mark is None:
        return (line.split() for line in lines)
    return csv.reader(io.StringIO("\n".join(lines)), delimiter=mark)


def _plain(column: Any) -> Array:
    """A column of a frame as numbers or words."""
    array = np.asarray(column.to_numpy(zero_copy_only=False) if hasattr(column, "combine_chunks") else column)
    if array.dtype.kind in "iufb":
        return array
    if array.dtype.kind in "mM":
        return (
            array.astype("datetime64[s]").astype(np.int64) if array.dtype.kind == "M" else array.astype(float)
        )
    blank = [item is None or item != item or type(item).__name__ == "NAType" for item in array.tolist()]
    return _typed(["" if empty else str(item) for item, empty in zip(array.tolist(), blank, strict=True)])


def _typed(cells: Sequence[str]) -> Array:
    """Whole numbers, numbers (blank: NaN), or words."""
    try:
        if all(cells):
            return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        numbers = np.array([float(cell) if cell else np.nan for cell in cells], np.float64)
        if any(cells):
            return numbers
    except ValueError:
        pass
    return np.array(list(cells), dtype=np.str_)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
