"""The files of a shard, written piece by piece, and hashed as they are written."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import xxhash

from sancus.graphs.bounded import Array, Ids, index_type
from sancus.partitioners.pieces import csr_pieces


class NpyFile:
    """One `.npy` of a known shape, appended to or filled row by row; `checksum` is known once closed."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        path.parent.mkdir(exist_ok=True)
        self._digest = xxhash.xxh3_128()
        self._dtype, self._remaining = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
        self._path, self._placed = path, False
        self._file = path.open("wb", buffering=0)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(self, header)
        self._first = self._file.tell()

    def write(self, data: bytes) -> None:
        """Bytes to the file and to its hash."""
        self._digest.update(data)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def place(self, rows: Ids, array: Array) -> None:
        """Put rows of a matrix, in whatever order they come, where they belong: `array[k]` is row `rows[k]`.

        Neighbouring rows are written at once. What is not written in the order of the file is hashed when the
        file is complete.
        """
        self._remaining -= array.size
        self._placed = True
        order = np.argsort(rows, kind="stable")
        rows, array = rows[order], np.ascontiguousarray(array[order], self._dtype)
        width = array[:1].nbytes
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
            if len(run) and width:
                view = memoryview(array[run[0] : run[-1] + 1].view(np.uint8).data).cast("B")
                self._file.seek(self._first + int(rows[run[0]]) * width)
                while view:
                    view = view[self._file.write(view) :]

    def append(self, array: Array) -> None:
        """More of the array, in its order."""
        self._remaining -= array.size
        if array.size:
            self.write(memoryview(np.ascontiguousarray(array, self._dtype)).cast("B"))  # type: ignore[arg-type]

    def __enter__(self) -> NpyFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._file.close()
        assert kind is not None or self._remaining == 0, "a file of a shard is not complete"

    @property
    def checksum(self) -> str:
        """The checksum of the whole file."""
        return checksum_of_file(self._path) if self._placed else self._digest.hexdigest()


class ShardFolder:
    """The folder of one rank while it is written; `checksums` are kept by file."""

    def __init__(self, top: Path, rank: int) -> None:
        self._top, self._rank = top, rank
        self.checksums: dict[str, str] = {}

    def open(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> NpyFile:
        """A file to append to; `close` it here."""
        return NpyFile(self._top / self._file(name), dtype, shape)

    def close(self, name: str, file: NpyFile) -> None:
        """Note the checksum of a file that is complete."""
        self.checksums[self._file(name)] = file.checksum

    def save(self, name: str, array: npt.NDArray[Any]) -> None:
        """A whole array at once."""
        with self.open(name, array.dtype, array.shape) as file:
            file.append(array)
        self.close(name, file)

    def save_rows(self, name: str, matrix: sp.csr_array, rows: Ids, column_of: Ids | None) -> Array:
        """Save rows of a CSR, columns renumbered by `column_of` and sorted.

        Returns a mask of the (renumbered) columns that have an entry in these rows.
        """
        pointer = np.concatenate([[0], np.cumsum(np.diff(matrix.indptr)[rows], dtype=np.int64)])
        has_entry = np.zeros(matrix.shape[1], bool)
        index = index_type(max(int(pointer[-1]), matrix.shape[1]))
        length = (int(pointer[-1]),)
        with (
            self.open(f"{name}_data", matrix.data.dtype, length) as data,
            self.open(f"{name}_indices", index, length) as indices,
        ):
            for piece in csr_pieces(pointer):
                part = matrix[rows[piece]]
                if column_of is not None:
                    columns = column_of[part.indices]
                    part = sp.csr_array((part.data, columns, part.indptr), shape=part.shape)
                    part.sort_indices()
                data.append(part.data)
                indices.append(part.indices)
                has_entry[part.indices] = True
        self.close(f"{name}_data", data)
        self.close(f"{name}_indices", indices)
        self.save(f"{name}_indptr", pointer.astype(index))
        return has_entry

    def _file(self, name: str) -> str:
        return f"rank-{self._rank}/{name}.npy"


def checksum_of_file(path: Path) -> str:
    """The checksum of a file as it is on the disk."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
