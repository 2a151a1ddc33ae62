"""Products, attention, packing and rows under pytest-benchmark: to compare a change with what was before.

To compare implementations with each other, run `python -m tests.bench.table`, which takes them in turn.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import scipy.sparse as sp
import torch

from sancus.kernels import bits, rows
from sancus.kernels.attention import AttentionGradients, RunningAttention, Weighing
from sancus.kernels.edges import sddmm
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.native.kernel import NativeKernel
from tests.bench.cases import COLUMNS, MAKERS, SHAPES, graph, products, stream_add, tensors

matrix_of = cache(graph)


@pytest.fixture(autouse=True)
def _all_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MAKERS)
def test_spmm(benchmark: Any, name: str, shape: str, columns: int) -> None:
    matrix: sp.csr_array = matrix_of(shape)
    runs = products(matrix, torch.randn(matrix.shape[1], columns), [name])
    if not runs:
        pytest.skip(f"{name} is not installed")
    benchmark.extra_info["gathered_bytes"] = matrix.nnz * columns * 4
    benchmark.pedantic(runs[name], rounds=3, warmup_rounds=1)


def test_stream_add(benchmark: Any) -> None:
    run, moved = stream_add()
    benchmark.extra_info["bytes"] = moved
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize(("heads", "width"), [(8, 8), (1, 41), (8, 41)])
def test_sddmm(benchmark: Any, heads: int, width: int) -> None:
    matrix = SparseMatrix(tensors(matrix_of("communities")), NativeKernel())
    left, right = torch.randn(2, matrix.shape[0], heads * width)
    assert matrix.transposition
    benchmark.pedantic(sddmm, (matrix, left, right, heads), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("dynamic", [False, True], ids=["gat", "gatv2"])
@pytest.mark.parametrize(("heads", "width"), [(8, 8), (1, 41)])
def test_attention(benchmark: Any, heads: int, width: int, dynamic: bool) -> None:
    """Forward and backward."""
    matrix = SparseMatrix(tensors(matrix_of("communities")), NativeKernel())
    values, query, gradient = torch.randn(3, matrix.shape[0], heads * width)
    query, key = (query, values) if dynamic else (query[:, :heads], values[:, :heads])
    weighing = Weighing(heads, 0.2, torch.randn(heads, width) if dynamic else None)

    def both() -> None:
        running = RunningAttention(query, width, weighing)
        running.add(matrix, values, key)
        gradients = AttentionGradients(query, weighing, running.finish(), gradient)
        gradients.of_block(matrix, values, key)
        gradients.finish()

    benchmark.pedantic(both, rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("width", bits.WIDTHS)
def test_pack(benchmark: Any, width: int) -> None:
    x = torch.randn(20_000, 256)
    row_ids = torch.arange(len(x))
    benchmark.extra_info["bytes"] = x.nbytes
    benchmark(bits.pack, x, width, 1, row_ids)


@pytest.mark.parametrize("width", bits.WIDTHS)
def test_unpack(benchmark: Any, width: int) -> None:
    x = torch.randn(20_000, 256)
    packed = bits.pack(x, width, 1, torch.arange(len(x)))
    benchmark.extra_info["bytes"] = x.nbytes
    benchmark(bits.unpack, packed.data, packed.zero, packed.scale, width, 256, torch.empty_like(x))


@pytest.mark.parametrize("columns", [10, 41, 128])
@pytest.mark.parametrize("operation", ["take", "add_taken", "add_at"])
def test_rows(benchmark: Any, operation: str, columns: int) -> None:
    h, index = torch.randn(100_000, columns), torch.randperm(100_000)[:40_000]
    some = torch.randn(40_000, columns)
    benchmark.extra_info["bytes"] = some.nbytes
    if operation == "take":
        benchmark(rows.take, h, index, some)
    elif operation == "add_taken":
        benchmark(rows.add_taken, h, index, some)
    else:
        benchmark(rows.add_at, some, index, h)
