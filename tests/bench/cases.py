"""What is measured: graph shapes, and every product that is installed. Needs only torch, numpy and scipy."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from sancus.kernels.base import Csr
from sancus.kernels.native.kernel import NativeKernel
from sancus.kernels.torch_csr import TorchKernel

Run = Callable[[], object]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """Nodes, entries, and how the entries are drawn."""

    nodes: int
    entries: int
    draw: Callable[[np.random.Generator, int, int], tuple[Ids, Ids]]


def power_law(random: np.random.Generator, nodes: int, entries: int) -> tuple[Ids, Ids]:
    """Degrees fall as the square root of the rank, in both directions; numbers are shuffled."""
    weight = np.arange(1, nodes + 1) ** -0.5
    name = random.permutation(nodes)
    row, col = (random.choice(nodes, entries, p=weight / weight.sum()) for _ in range(2))
    return name[row], name[col]


def uniform(random: np.random.Generator, nodes: int, entries: int) -> tuple[Ids, Ids]:
    """Any entry is as likely as any other: no locality at all."""
    return random.integers(0, nodes, entries), random.integers(0, nodes, entries)


def communities(random: np.random.Generator, nodes: int, entries: int) -> tuple[Ids, Ids]:
    """Nine of ten entries stay among 1000 neighbouring rows, as after partitioning."""
    row = random.integers(0, nodes, entries)
    near = np.minimum(row // 1000 * 1000 + random.integers(0, 1000, entries), nodes - 1)
    return row, np.where(random.random(entries) < 0.9, near, random.integers(0, nodes, entries))


SHAPES: dict[str, Shape] = {
    "power-law": Shape(200_000, 10_000_000, power_law),
    "uniform": Shape(200_000, 10_000_000, uniform),
    "communities": Shape(200_000, 10_000_000, communities),
}
COLUMNS = (16, 64, 128, 256, 602)


def graph(name: str, scale: float = 1.0) -> sp.csr_array:
    """The adjacency of a shape with random weights, float32; duplicates are merged."""
    shape = SHAPES[name]
    random = np.random.default_rng(0)
    nodes, entries = max(10, int(shape.nodes * scale)), max(10, int(shape.entries * scale))
    row, col = shape.draw(random, nodes, entries)
    matrix = sp.csr_array((np.ones(entries, np.float32), (row, col)), shape=(nodes, nodes))
    matrix.sum_duplicates()
    matrix.data = random.random(matrix.nnz, dtype=np.float32)
    return matrix


def tensors(matrix: sp.csr_array) -> Csr:
    """The same as tensors."""
    return Csr(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int32)),
        torch.from_numpy(matrix.data),
        (matrix.shape[0], matrix.shape[1]),
    )


def products(matrix: sp.csr_array, dense: torch.Tensor, names: Iterable[str]) -> dict[str, Run]:
    """`A H` by those of `names` (keys of `MAKERS`) that are installed; each call allocates its result."""
    csr, found = tensors(matrix), {}
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[name] = MAKERS[name](csr, matrix, dense)
            except ImportError:
                continue
    return found


def _native(csr: Csr, matrix: sp.csr_array, dense: torch.Tensor) -> Run:
    kernel = NativeKernel()
    prepared = kernel.prepare(csr)
    return lambda: kernel.multiply(prepared, dense)


def _torch(csr: Csr, matrix: sp.csr_array, dense: torch.Tensor) -> Run:
    prepared = TorchKernel().prepare(csr)
    return lambda: prepared @ dense


def _torch_sparse(csr: Csr, matrix: sp.csr_array, dense: torch.Tensor) -> Run:
    package = importlib.import_module("torch_sparse")
    adjacency = package.SparseTensor(
        rowptr=csr.crow,
        col=csr.col.long(),
        value=csr.value,
        sparse_sizes=csr.shape,
        is_sorted=True,
        trust_data=True,
    )
    return lambda: package.matmul(adjacency, dense)


def _scipy(csr: Csr, matrix: sp.csr_array, dense: torch.Tensor) -> Run:
    array = dense.numpy()
    return lambda: matrix @ array


def _pyg(csr: Csr, matrix: sp.csr_array, dense: torch.Tensor) -> Run:
    utils = importlib.import_module("torch_geometric.utils")
    adjacency = TorchKernel().prepare(csr)
    return lambda: utils.spmm(adjacency, dense, "sum")


def _dgl_parts(matrix: sp.csr_array) -> tuple[Any, Any, torch.Tensor]:
    package = importlib.import_module("dgl")
    coo = matrix.T.tocoo()  # dgl aggregates over incoming edges
    adjacency = package.graph(
        (torch.from_numpy(coo.row), torch.from_numpy(coo.col)), num_nodes=matrix.shape[0]
    )
    return package.ops, adjacency.formats("csc"), torch.from_numpy(coo.data)


def _dgl(csr: Csr, matrix: sp.csr_array, dense: torch.Tensor) -> Run:
    ops, adjacency, _ = _dgl_parts(matrix)
    return lambda: ops.copy_u_sum(adjacency, dense)


def _dgl_weighted(csr: Csr, matrix: sp.csr_array, dense: torch.Tensor) -> Run:
    ops, adjacency, weight = _dgl_parts(matrix)
    column = weight[:, None]
    return lambda: ops.u_mul_e_sum(adjacency, dense, column)


MAKERS: dict[str, Callable[[Csr, sp.csr_array, torch.Tensor], Run]] = {
    "native": _native,
    "torch CSR": _torch,
    "torch-sparse": _torch_sparse,
    "scipy": _scipy,
    "PyG spmm": _pyg,
    "DGL copy_u_sum": _dgl,
    "DGL u_mul_e_sum": _dgl_weighted,
}


def stream_add(megabytes: int = 200) -> tuple[Run, int]:
    """`c = a + b` on arrays that no cache holds, and the bytes that it moves, as STREAM counts them."""
    a, b, c = (torch.ones(megabytes * 250_000) for _ in range(3))
    return (lambda: torch.add(a, b, out=c)), 3 * a.nbytes
