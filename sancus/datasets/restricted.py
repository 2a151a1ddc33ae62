"""Loads pickles that may build arrays, sparse matrices, lists and dictionaries, and nothing else.

The files of Planetoid are pickles of Python 2. Every other class or function that a pickle names is refused
before it is looked up, so that a harmful one does nothing. Arrays are built by functions of our own, which
ignore sizes that a pickle claims without bringing the bytes.
"""

from __future__ import annotations

import pickle
import pickletools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp

from sancus.datasets.assemble import csr_of
from sancus.datasets.fields import Fields
from sancus.errors import UserError

MOST_BYTES = 1 << 31  # of one pickle
PLAIN = "biuf"
MEMO = ("PUT", "BINPUT", "LONG_BINPUT")


class _Sparse:
    """Stands for scipy's matrix: keeps what the pickle says of it, checked when it is built."""

    def __init__(self, *_: object) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.state = state


def load_restricted(path: Path) -> Any:
    """The content of a pickle file: arrays, CSR matrices, plain containers and numbers."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path}: is larger than {MOST_BYTES:,} bytes; it is no Planetoid file")
        with path.open("rb") as file:
            _check_program(file, path.stat().st_size)
            file.seek(0)
            return _finish(path, _Unpickler(path, file, encoding="latin1").load())
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the file") from error
    except Exception as error:  # a pickle is a program: it can fail in any way
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"{path}: is damaged ({reason}); download it again") from error


def _check_program(file: BinaryIO, size: int) -> None:
    """Refuse memo numbers larger than the file, for which the unpickler would allocate gigabytes."""
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in MEMO and isinstance(argument, int) and argument > size:
            raise ValueError(f"memo number {argument} in a file of {size} bytes")


class _Unpickler(pickle.Unpickler):
    def __init__(self, path: Path, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))
        if stand_in is None:
            raise UserError(
                f"{self._path}: names {module}.{name}, which no graph needs; it is not loaded (harmful?)"
            )
        return stand_in

    def persistent_load(self, pid: Any) -> Any:
        raise UserError(f"{self._path}: refers to something outside of it; it is not loaded")


class _DType:
    """Stands for numpy's dtype, whose own state a damaged pickle could break."""

    def __init__(self, code: object = "", *_: object) -> None:
        dtype = np.dtype(str(code))
        if dtype.kind not in PLAIN:
            raise ValueError(f"an array has dtype {code!r}; only numbers are read")
        self.plain = dtype

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        if order == "<":
            self.plain = self.plain.newbyteorder("<")
        elif order == ">":
            self.plain = self.plain.newbyteorder(">")


class _Array:
    """Stands for numpy's array: built from bytes that are there, and never larger than them."""

    def __init__(self, *_: object) -> None:
        self.array: np.ndarray[Any, Any] = np.empty(0)

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise ValueError("an array without shape, dtype and bytes")
        _, shape, dtype, columns_first, content = state
        if not isinstance(dtype, _DType) or not isinstance(shape, tuple):
            raise ValueError("an array of something else than numbers")
        raw = content.encode("latin1") if isinstance(content, str) else bytes(content)
        flat = np.frombuffer(raw, dtype.plain)
        self.array = flat.reshape(shape, order="F" if columns_first else "C").astype(
            dtype.plain.newbyteorder("=")
        )


def _reconstruct(*_: object) -> _Array:
    """An empty array: its shape comes with its bytes, from `__setstate__`."""
    return _Array()


def _encode(text: str, *_: object) -> bytes:
    """`_codecs.encode(text, "latin1")`: how Python 3 writes bytes in old protocols."""
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any] | type] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
    ("scipy.sparse.csr", "csr_matrix"): _Sparse,
    ("scipy.sparse._csr", "csr_matrix"): _Sparse,
    ("scipy.sparse._csr", "csr_array"): _Sparse,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


def _finish(path: Path, value: Any) -> Any:
    """What was unpickled, with sparse matrices built and arrays of objects refused."""
    if isinstance(value, _Sparse):
        return _csr(path, {name: _plain(part) for name, part in value.state.items()})
    value = _plain(value)
    if isinstance(value, np.ndarray) and value.dtype.kind not in PLAIN:
        raise UserError(f"{path}: holds an array of {value.dtype}; only numbers are read")
    return value


def _csr(path: Path, state: dict[str, Any]) -> sp.csr_array:
    arrays: dict[str, Any] = {name: state[name] for name in ("indptr", "indices", "data") if name in state}
    shape = state.get("_shape", state.get("shape"))
    if isinstance(shape, tuple) and all(isinstance(length, int) for length in shape):
        arrays["shape"] = np.array(shape, np.int64)
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UserError(f"{path}: {name} of a sparse matrix is not an array; download it again")
    return csr_of(Fields(str(path), arrays), "")


def _plain(value: Any) -> Any:
    """The numpy array that an `_Array` stands for; any other value as it is."""
    return value.array if isinstance(value, _Array) else value
