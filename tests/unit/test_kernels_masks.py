"""Dropout by a hash: the native kernel and torch keep the same entries, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sancus.kernels import masks
from sancus.kernels.matrix import SparseMatrix
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
        dropped = calls.drop(h, some, masks.bucket(share), 1 / (1 - share), loaded=loaded)
        assert torch.equal(dropped, expected), isa


@native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_entries_are_dropped_as_in_the_dense_matrix(index: torch.dtype, dtype: torch.dtype) -> None:
    dense = sp.random_array((40, 30), density=0.2, rng=np.random.default_rng(1), format="csr")
    x, some = SparseMatrix.from_scipy(sp.csr_array(dense), TorchKernel(), dtype), keys(40, 30)
    expected = masks.drop(x.to_dense(), some, 0.4)
    pattern = x.csr.crow, x.csr.col.to(index)
    value = calls.drop_entries(pattern, x.csr.value, some, masks.bucket(0.4), 1 / 0.6)
    assert torch.equal(x.with_values(value).to_dense(), expected)
    with without_library():
        assert torch.equal(masks.drop_entries(x, some, 0.4), value)


def test_values_given_both_ways_are_one_matrix() -> None:
    """What backward multiplies by is the transpose of what forward did."""
    dense = sp.random_array((40, 30), density=0.2, rng=np.random.default_rng(1), format="csr")
    x, (rows, columns) = (
        SparseMatrix.from_scipy(sp.csr_array(dense), TorchKernel(), torch.float64),
        keys(40, 30),
    )
    forward = masks.drop_entries(x, (rows, columns), 0.4)
    both = x.with_both_values(forward, masks.drop_entries(x.transposed, (columns, rows), 0.4))
    assert torch.equal(both.transposed.to_dense(), both.to_dense().T)
    assert both.transposed.transposed is both


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
