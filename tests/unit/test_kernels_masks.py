"""Dropout by a hash: the native kernel and torch keep the same entries, bit for bit."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sancus.kernels import masks
from sancus.kernels.matrix import SparseMatrix, with_transpose
from sancus.kernels.native import calls
from sancus.kernels.native.library import available, library
from sancus.kernels.torch_csr import TorchKernel

DTYPES = (torch.float32, torch.float64)
native = pytest.mark.skipif(not available(), reason="the native library is not compiled")


def keys(rows: int, columns: int) -> masks.Keys:
    drawn = np.random.default_rng(rows + columns).integers(-(2**31), 2**31, rows + columns).astype(np.int32)
    return torch.from_numpy(drawn[:rows].copy()), torch.from_numpy(drawn[rows:].copy())


def without_library() -> Any:
    return mock.patch.object(masks, "available", return_value=False)


@native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0), (1, 1), (5, 7), (300, 65)])
@pytest.mark.parametrize("share", [0.001, 0.37, 0.999])
def test_every_instruction_set_drops_what_torch_drops(
    rows: int, columns: int, share: float, dtype: torch.dtype
) -> None:
    h, some = torch.randn(rows, columns + 2, dtype=dtype)[:, 1:-1], keys(rows, columns)
    with without_library():
        expected = masks.drop(h, some, share)
    for isa in range(library().isa + 1):
        loaded = replace(library(), isa=isa)
        dropped = calls.drop(h, some, masks.bucket(share), 1 / (1 - share), native=loaded)
        assert torch.equal(dropped, expected), isa


def sparse(rows: int, columns: int, density: float, dtype: torch.dtype) -> SparseMatrix:
    drawn = sp.random_array((rows, columns), density=density, rng=np.random.default_rng(1), format="csr")
    return SparseMatrix.from_scipy(sp.csr_array(drawn), TorchKernel(), dtype)


@native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("rows", "columns", "density"), [(0, 3, 0.5), (7, 5, 0.0), (40, 30, 0.2), (5, 700, 1.0)]
)
@pytest.mark.parametrize("share", [0.001, 0.4, 0.999])
def test_entries_are_dropped_as_in_the_dense_matrix(
    rows: int, columns: int, density: float, share: float, index: torch.dtype, dtype: torch.dtype
) -> None:
    x, some = sparse(rows, columns, density, dtype), keys(rows, columns)
    with without_library():
        expected = masks.drop_entries(x, some, share)
        dense = masks.drop(x.to_dense(), some, share)
    assert torch.equal(SparseMatrix(expected, x.kernel).to_dense(), dense)
    assert len(expected.value) == int((dense != 0).sum()), "an entry that was dropped is still there"
    scale = 1 / (1 - share)
    for isa in range(library().isa + 1):
        kept = calls.keep_entries(
            (x.csr.crow, x.csr.col.to(index)),
            x.csr.value,
            some,
            masks.bucket(share),
            scale,
            native=replace(library(), isa=isa),
        )
        for got, wanted in zip(kept, (expected.crow, expected.col, expected.value), strict=True):
            assert torch.equal(got, wanted.to(got.dtype)), isa


@native
def test_entries_are_dropped_alike_by_any_number_of_threads() -> None:
    x, some = sparse(3000, 200, 0.3, torch.float32), keys(3000, 200)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(masks.drop_entries(x, some, 0.5))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other.crow, found[0].crow)
        assert torch.equal(other.col, found[0].col) and torch.equal(other.value, found[0].value)


def test_a_matrix_dropped_both_ways_is_one_matrix() -> None:
    """What backward multiplies by is the transpose of what forward did."""
    x, (rows, columns) = sparse(40, 30, 0.2, torch.float64), keys(40, 30)
    forward = masks.drop_entries(x, (rows, columns), 0.4)
    flipped = masks.drop_entries(x.transposed, (columns, rows), 0.4)
    both = with_transpose(forward, flipped, x.kernel)
    assert torch.equal(both.transposed.to_dense(), both.to_dense().T)


def test_a_dropped_matrix_is_freed_with_its_last_use() -> None:
    """Not when the collector of cycles runs: an epoch makes one as large as the features."""
    x, (rows, columns) = sparse(40, 30, 0.2, torch.float64), keys(40, 30)
    forward = masks.drop_entries(x, (rows, columns), 0.4)
    flipped = masks.drop_entries(x.transposed, (columns, rows), 0.4)
    both = with_transpose(forward, flipped, x.kernel)
    weight = torch.ones(30, 2, dtype=torch.float64, requires_grad=True)
    product, alive = both @ weight, weakref.ref(both)
    product.sum().backward()
    gc.disable()
    try:
        del both, product
        assert alive() is None
    finally:
        gc.enable()


@native
def test_the_gradient_is_dropped_where_the_entries_were() -> None:
    some, gradients = keys(20, 9), []
    for patch in (mock.patch.object(masks, "available", return_value=True), without_library()):
        h = torch.ones(20, 9, requires_grad=True)
        with patch:
            masks.drop(h, some, 0.5).backward(torch.arange(180.0).view(20, 9))
        gradients.append(h.grad)
    assert torch.equal(gradients[0], gradients[1]) and (gradients[0] == 0).any() and gradients[0].any()


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=native), False])
@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 5), (200, 7)])
def test_a_product_of_dropped_rows_is_that_of_their_copy(rows: int, columns: int, *, compiled: bool) -> None:
    """In tiles of 64 rows; so are its gradients, and a constant has none."""
    some = keys(rows, columns)
    with (
        mock.patch.object(masks, "available", return_value=compiled),
        mock.patch.object(masks, "_TILE_BYTES", 1),
    ):
        results = []
        for product in (masks.drop_product, lambda h, some, share, w: masks.drop(h, some, share) @ w):
            draw = torch.Generator().manual_seed(3)
            h = torch.randn(rows, columns, dtype=torch.float64, generator=draw).requires_grad_()
            weight = torch.randn(columns, 4, dtype=torch.float64, generator=draw).requires_grad_()
            z = product(h, some, 0.4, weight)
            (z * torch.arange(z.numel()).view_as(z)).sum().backward()
            results.append((z.detach(), h.grad, weight.grad))
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        constant = h.detach()
        masks.drop_product(constant, some, 0.4, weight).sum().backward()
        assert constant.grad is None
