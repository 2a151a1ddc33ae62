"""METIS with several balance constraints, which `pymetis` does not offer: its library is called.

DistDGL §4.1.2 balances rows, edges and the nodes of every split at once with METIS's multi-constraint scheme
(G. Karypis and V. Kumar, "Multilevel algorithms for multi-constraint graph partitioning", SC 1998).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Assignment

OPTIONS = 40  # METIS_NOPTIONS
OK = 1
TOLERANCE = 50  # thousandths that a part may have more than the mean, of each constraint


def several_constraints(
    starts: npt.NDArray[np.integer],
    neighbours: npt.NDArray[np.integer],
    weights: npt.NDArray[np.int64],
    parts: int,
    seed: int,
    *,
    recursive: bool,
) -> Assignment:
    """Parts `[N]` that balance every column of `weights [N, constraints]`, with few edges between them."""
    import pymetis
    from pymetis import _internal

    index = pymetis.zero_copy_dtype()
    integer = ctypes.c_int64 if np.dtype(index).itemsize == 8 else ctypes.c_int32
    library = ctypes.CDLL(_internal.__file__)
    name = "METIS_PartGraphRecursive" if recursive else "METIS_PartGraphKway"
    if not hasattr(library, name):
        raise ValueError(
            "this pymetis hides METIS's functions; balance one thing, or install its wheel from PyPI"
        )
    xadj, adjncy, vwgt = (np.ascontiguousarray(a, index) for a in (starts, neighbours, weights))
    members = np.zeros(len(starts) - 1, index)
    options = np.zeros(OPTIONS, index)
    library.METIS_SetDefaultOptions(_pointer(options))
    indices: Any = _internal.options_indices  # type: ignore[attr-defined]
    options[indices.SEED] = seed
    options[indices.UFACTOR] = TOLERANCE
    cut = integer(0)
    code = getattr(library, name)(
        ctypes.byref(integer(len(members))),
        ctypes.byref(integer(weights.shape[1])),
        _pointer(xadj),
        _pointer(adjncy),
        _pointer(vwgt),
        None,  # sizes of nodes
        None,  # weights of edges
        ctypes.byref(integer(parts)),
        None,  # equal targets
        None,  # tolerances: those of the options
        _pointer(options),
        ctypes.byref(cut),
        _pointer(members),
    )
    if code != OK:
        raise ValueError(f"METIS gave up with code {code}; try fewer constraints or fewer parts")
    return members.astype(np.int64)


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
