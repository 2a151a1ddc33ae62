"""Checked access to the arrays of a graph file: what is wrong is said in one line, with file and field.

Every function takes arrays as a file gave them and returns them as the graph wants them, or raises a
`UserError`. `N` is the number of nodes, `E` of edges, `F` of features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.errors import UserError
from sancus.graphs.bounded import first_not_finite, index_type

Array = npt.NDArray[Any]

INTEGERS = "iu"  # numpy kinds: signed, unsigned
FLAGS = "b" + INTEGERS
NUMBERS = FLAGS + "f"


@dataclass(frozen=True)
class Fields:
    """The arrays of one file."""

    file: str
    arrays: Mapping[str, Array]

    def __contains__(self, field: str) -> bool:
        return field in self.arrays

    def error(self, field: str, what: str) -> UserError:
        """The one line: file, field, what is wrong."""
        return UserError(f"{self.file}: {field} {what}")

    def get(self, field: str, kinds: str, *shape: int | None) -> Array:
        """A field with a dtype among `kinds` and the given shape, where `None` is any length."""
        if field not in self.arrays:
            present = ", ".join(sorted(self.arrays)) or "nothing"
            raise self.error(field, f"is missing; add it (the file holds {present})")
        array = self.arrays[field]
        if array.dtype.kind not in kinds and not (array.size == 0 and array.dtype.kind == "f"):
            requirement = "numbers" if kinds == NUMBERS else "whole numbers"
            raise self.error(field, f"has dtype {array.dtype}; save it as {requirement}")
        fits = array.ndim == len(shape) and all(
            want is None or want == have for want, have in zip(shape, array.shape, strict=True)
        )
        if not fits:
            requirement = ", ".join("any" if length is None else str(length) for length in shape)
            raise self.error(field, f"has shape {list(array.shape)}; it must be [{requirement}]")
        return array

    def finite(self, field: str, array: Array) -> npt.NDArray[np.float32]:
        """Numbers as contiguous float32; NaN, infinity and what overflows float32 are refused.

        What is mapped as float32 stays mapped: it is looked at piece by piece.
        """
        if not isinstance(array, np.memmap) or array.dtype != np.float32:
            with np.errstate(over="ignore"):
                array = np.ascontiguousarray(array, np.float32)
        place = first_not_finite(array)
        if place is not None:
            where = [int(index) for index in np.unravel_index(place, array.shape)]
            raise self.error(field, f"holds NaN or infinity at {where} (as float32); clean it and save again")
        return array

    def indices(self, field: str, array: Array, limit: int, what: str) -> Array:
        """An array of indices, as int32 where they fit; one outside `[0, limit)` is an error."""
        if array.size and (array.min() < 0 or array.max() >= limit):
            flat = array.ravel()
            place = int(np.flatnonzero((flat < 0) | (flat >= limit))[0])
            where = [int(index) for index in np.unravel_index(place, array.shape)]
            raise self.error(field, f"holds {what} {flat[place]} at {where}; {what}s are 0 to {limit - 1}")
        return array.astype(index_type(limit), copy=False)

    def pointer(self, field: str, rows: int, entries: int, of: str) -> npt.NDArray[np.int64]:
        """A CSR row pointer `[rows + 1]`: starts at 0, never falls, ends at `entries`."""
        array = self.get(field, INTEGERS, None)
        if len(array) != rows + 1:
            raise self.error(field, f"has {len(array)} entries; {rows} nodes need {rows + 1}")
        falls = np.flatnonzero(array[1:] < array[:-1])
        if falls.size:
            raise self.error(field, f"falls after entry {falls[0]}; a row pointer never decreases")
        if array[0] != 0 or array[-1] != entries:
            raise self.error(
                field,
                f"runs from {array[0]} to {array[-1]}; it must run from 0 to the {entries} entries of {of}",
            )
        return array.astype(np.int64, copy=False)

    def mask(self, field: str, nodes: int) -> npt.NDArray[np.bool_]:
        """A mask `[N]` of booleans, or of 0 and 1, that selects at least one node."""
        array = self.get(field, FLAGS, nodes)
        if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
            wrong = array[~np.isin(array, (0, 1))][0]
            raise self.error(field, f"holds {wrong}; a mask is one boolean (or 0 and 1) a node")
        if not array.any():
            raise self.error(field, "selects no node; every split needs at least one")
        return array.astype(np.bool_)
