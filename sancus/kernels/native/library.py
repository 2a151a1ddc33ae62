"""Finds and loads the compiled library; nothing is loaded before the first call of `library`.

The library knows neither torch nor Python, so one build serves every version of both. Its threads are
those of the OpenMP runtime that torch has already loaded.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import CDLL, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from sancus.kernels.native.place import library_path

INTERFACE = 7  # of the C functions; equal to SANCUS_INTERFACE in common.h
ISAS = ("baseline", "AVX2", "AVX-512")

_POINTER, _LONG = c_void_p, c_int64
_SIGNATURES: dict[str, list[object]] = {
    "sancus_spmm": [
        *[c_int] * 4,  # isa, threads, float64, int64 columns
        *[_LONG, _POINTER, _POINTER, _POINTER],  # rows, crow, col, value
        *[_LONG, _POINTER, _LONG, _POINTER, _LONG],  # rows of dense, dense, its stride, out, its stride
        *[_LONG, _LONG, c_int],  # heads, width, accumulate
    ],
    "sancus_move_rows": [
        *[c_int] * 3,  # threads, float64, operation
        *[_LONG, _POINTER],  # rows, index
        *[_POINTER, _LONG, _POINTER, _LONG, _LONG],  # from, its stride, to, its stride, width
    ],
    "sancus_drop": [
        *[c_int] * 3,  # isa, threads, float64
        *[_LONG, _LONG, _POINTER, _POINTER, c_int32, c_double],  # rows, columns, their keys, bucket, scale
        *[_POINTER, _LONG, _POINTER, _LONG],  # x, its stride, out, its stride
    ],
    "sancus_count_kept": [
        *[c_int] * 3,  # isa, threads, int64 columns
        *[_LONG, _POINTER, _POINTER],  # rows, crow, col
        *[_POINTER, _POINTER, c_int32, _POINTER],  # keys of rows and columns, bucket, count
    ],
    "sancus_keep_entries": [
        *[c_int] * 4,  # isa, threads, float64, int64 columns
        *[_LONG, _POINTER, _POINTER],  # rows, crow, col
        *[_POINTER, _POINTER, c_int32, c_double],  # keys of rows and columns, bucket, scale
        *[_POINTER] * 4,  # value; crow, col and value of what is kept
    ],
    "sancus_sddmm": [
        *[c_int] * 4,  # isa, threads, float64, int64 columns
        *[_LONG, _POINTER, _POINTER],  # rows, crow, col
        *[_POINTER, _LONG, _LONG, _POINTER, _LONG],  # left, its stride, rows of right, right, its stride
        *[_LONG, _LONG, _POINTER],  # heads, width, score
    ],
    "sancus_edge_softmax": [*[c_int] * 3, _LONG, _POINTER, _POINTER, _LONG, _POINTER],
    "sancus_edge_softmax_backward": [*[c_int] * 3, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _POINTER],
    "sancus_lay_out_heads": [
        *[c_int] * 2,  # threads, float64
        *[_LONG] * 5,  # rows, heads, width, lanes, columns of the layout
        *[_POINTER, _LONG, _POINTER, _LONG],  # from, its stride, to, its stride
    ],
    "sancus_take_back_heads": [
        *[c_int] * 2,  # threads, float64
        *[_LONG] * 4,  # rows, heads, width, lanes
        *[_POINTER, _LONG, _POINTER, _LONG, _POINTER, _LONG],  # from, factor, to, each with its stride
    ],
    "sancus_attend": [
        *[c_int] * 4,  # isa, threads, float64, form
        *[_LONG, _POINTER, _POINTER],  # rows, crow, col
        *[_LONG, _POINTER, _LONG],  # other rows: how many, where, their stride
        *[_POINTER, _LONG, _POINTER, _POINTER, _LONG],  # own rows, their stride, mix, out, its stride
        *[_LONG, c_int, c_double, c_int],  # columns, lanes, slope, fresh
        *[_POINTER, _POINTER, c_int32, c_double],  # keys of own and other rows, bucket, scale
    ],
    "sancus_pack": [
        *[c_int] * 4,  # isa, threads, bits, coarse
        *[c_uint64, _LONG, _LONG],  # seed, rows, columns
        *[_POINTER, _LONG, _POINTER],  # x, its stride, row ids
        *[_POINTER] * 4,  # packed, zero, scale, finite
    ],
    "sancus_sample": [
        *[c_int] * 2,  # int64 columns, float64
        *[_POINTER] * 6,  # crow, col, weight, left, right, diagonal
        *[c_int] * 2,  # way, by weight
        *[_LONG, _POINTER, _POINTER],  # hops, fan-outs, keys
        *[_POINTER, c_uint64],  # table of nodes, its stamp
        *[_POINTER] * 3,  # scratch: picks, set, keys of entries
        *[_POINTER] * 3,  # nodes, their right factors, counts
        *[_POINTER] * 5,  # of every hop: crow, col, value, room; progress
    ],
    "sancus_unpack": [
        *[c_int] * 3,  # isa, threads, bits
        *[_LONG, _LONG],  # rows, columns
        *[_POINTER] * 4,  # packed, zero, scale, out
        _LONG,  # stride of out
    ],
}


class UnavailableError(Exception):
    """The library cannot be used here; the message says why."""


@dataclass(frozen=True)
class Library:
    """The loaded functions, and what this machine offers them."""

    functions: CDLL
    isa: int  # index into ISAS: the widest that this machine runs
    threaded: bool  # compiled with OpenMP

    def describe(self) -> str:
        """Instruction set and threading, for messages: `AVX2, OpenMP`."""
        return f"{ISAS[self.isa]}, {'OpenMP' if self.threaded else 'one thread'}"


@cache
def library() -> Library:
    """The library; `UnavailableError` says why there is none."""
    path = library_path()
    if not path.exists():
        raise UnavailableError("it was not compiled: install again where a C compiler is found")
    return load(path)


def available() -> bool:
    """Whether `library` succeeds."""
    try:
        library()
    except UnavailableError:
        return False
    return True


def load(path: Path) -> Library:
    """Load one file, check that it is of this version, and declare its functions."""
    try:
        functions = ctypes.CDLL(os.fspath(path))
        version = int(functions.sancus_interface())
    except (OSError, AttributeError) as error:
        raise UnavailableError(f"its library does not load: {error}") from error
    if version != INTERFACE:
        raise UnavailableError("its library is of another version of Sancus: install again")
    for name, arguments in _SIGNATURES.items():
        function = getattr(functions, name)
        function.argtypes = arguments
        function.restype = None
    return Library(functions, int(functions.sancus_isa()), bool(functions.sancus_threaded()))


def threads() -> int:
    """Threads of this process, as torch counts them."""
    return torch.get_num_threads()
