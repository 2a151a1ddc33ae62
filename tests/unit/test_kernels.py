"""The contract of a kernel, for every entry of the table, against dense float64; the matrix that uses it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sancus.config.settings import FactorSettings
from sancus.errors import UserError
from sancus.kernels import KERNELS
from sancus.kernels.base import Csr, Kernel, index_dtype
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.torch_sparse import csr_of
from sancus.kernels.transpose import row_of_entries, transposition_of
from sancus.plugins import build, summary

WIDTHS = (0, 1, 3, 7, 8, 16, 17, 33, 64, 65, 100, 130)


def kernel_or_skip(name: str) -> Kernel:
    try:
        kernel: Kernel = build("kernel", KERNELS, name)
    except UserError as error:
        pytest.skip(str(error))
    return kernel


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_or_skip(request.param)


def csr(rows: int, columns: int, entries: int, dtype: torch.dtype, seed: int) -> Csr:
    """Entries anywhere, also twice at one place and unsorted within a row; some rows are empty."""
    random = torch.Generator().manual_seed(seed)
    if not rows or not columns:
        entries = 0
    row = (torch.rand(entries, generator=random) ** 2 * rows).long().sort().values
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(row, minlength=rows).cumsum(0)])
    col = torch.randint(0, max(columns, 1), (entries,), generator=random)
    value = torch.randn(entries, generator=random, dtype=dtype)
    return Csr(crow[: rows + 1], col.to(index_dtype(columns)), value, (rows, columns))


def exact(matrix: Csr, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`A H` in float64, and the bound of its rounding in the dtype of `H`."""
    full = SparseMatrix(Csr(matrix.crow, matrix.col, matrix.value.double(), matrix.shape), None).to_dense()  # type: ignore[arg-type]
    sizes = SparseMatrix(
        Csr(matrix.crow, matrix.col, matrix.value.double().abs(), matrix.shape), None
    ).to_dense()  # type: ignore[arg-type]
    longest = int(matrix.crow.diff().max()) if len(matrix.crow) > 1 else 0
    unit = torch.finfo(dense.dtype).eps * (longest + 2)
    return full @ dense.double(), sizes @ dense.double().abs() * unit + torch.finfo(dense.dtype).tiny


def assert_close(result: torch.Tensor, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    value, bound = expected
    assert result.shape == value.shape
    assert bool(((result.double() - value).abs() <= bound).all())


@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 40),
    entries=st.integers(0, 300),
    width=st.sampled_from(WIDTHS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", KERNELS)
def test_product_and_sum_are_those_of_dense(
    name: str, rows: int, columns: int, entries: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    kernel = kernel_or_skip(name)
    matrix = csr(rows, columns, entries, dtype, seed)
    dense = torch.randn(columns, width, dtype=dtype)
    expected, bound = exact(matrix, dense)
    prepared = kernel.prepare(matrix)
    assert_close(kernel.multiply(prepared, dense), (expected, bound))
    start = torch.randn(rows, width, dtype=dtype)
    out = start.clone()
    kernel.accumulate(prepared, dense, out)
    slack = torch.finfo(dtype).eps * (start.abs() + expected.abs()).double() * (entries + 2)
    assert_close(out, (start.double() + expected, bound + slack))


def test_the_order_of_products_does_not_lose_one(kernel: Kernel) -> None:
    """The block sequence of SANCUS: p products into one output."""
    blocks = [csr(50, 20, 200, torch.float64, seed) for seed in range(4)]
    payloads = [torch.randn(20, 24, dtype=torch.float64) for _ in blocks]
    out = torch.zeros(50, 24, dtype=torch.float64)
    for block, payload in zip(blocks, payloads, strict=True):
        kernel.accumulate(kernel.prepare(block), payload, out)
    expected = sum(exact(block, payload)[0] for block, payload in zip(blocks, payloads, strict=True))
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "layout", ["columns", "transposed", "unaligned", "every other row", "one row repeated"]
)
def test_strides_of_the_dense_operand_do_not_matter(kernel: Kernel, layout: str) -> None:
    matrix = csr(30, 20, 150, torch.float32, 1)
    dense = {
        "columns": lambda: torch.randn(20, 50)[:, 7:20],
        "transposed": lambda: torch.randn(13, 20).T,
        "unaligned": lambda: torch.randn(20 * 13 + 1)[1:].view(20, 13),
        "every other row": lambda: torch.randn(40, 13)[::2],
        "one row repeated": lambda: torch.randn(1, 13).expand(20, 13),
    }[layout]()
    assert_close(kernel.multiply(kernel.prepare(matrix), dense), exact(matrix, dense))


def test_gradient_is_the_product_with_the_transpose(kernel: Kernel) -> None:
    matrix = SparseMatrix(csr(9, 7, 40, torch.float64, 2), kernel)
    dense = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: matrix @ h, (dense,))
    (matrix @ dense).sum().backward()
    torch.testing.assert_close(dense.grad, matrix.to_dense().T @ torch.ones(9, 5, dtype=torch.float64))


def test_a_tiny_gradient_is_exact_on_one_column(kernel: Kernel) -> None:
    matrix = SparseMatrix(csr(6, 6, 12, torch.float64, 3), kernel)
    dense = torch.randn(6, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: matrix @ h, (dense,))


def test_not_a_number_stays_in_its_rows(kernel: Kernel) -> None:
    matrix = sp.csr_array(np.array([[1.0, 0.0], [0.0, 2.0]]))
    dense = torch.tensor([[float("nan")], [3.0]], dtype=torch.float64)
    product = SparseMatrix.from_scipy(matrix, kernel, torch.float64) @ dense
    assert product.isnan().tolist() == [[True], [False]]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 40), st.integers(0, 99))
def test_weighted_columns(rows: int, columns: int, entries: int, seed: int) -> None:
    """Columns of weight 0 are gone, others multiplied; so are the rows of the transpose."""
    matrix = SparseMatrix(csr(rows, columns, entries, torch.float64, seed), build("kernel", KERNELS, "torch"))
    weight = torch.randn(columns, generator=torch.Generator().manual_seed(seed)).double().clamp(min=0)
    thin = matrix.weighted_columns(weight)
    expected = (matrix.to_dense() * weight)[:, weight > 0]
    assert thin.shape == expected.shape
    torch.testing.assert_close(thin.to_dense(), expected)
    torch.testing.assert_close(thin.transposed.to_dense(), expected.T)
    assert thin.nnz == int((weight[matrix.csr.col.to(torch.int64)] > 0).sum()), "what is gone takes no memory"
    dense = torch.ones(expected.shape[1], 2, dtype=torch.float64)
    torch.testing.assert_close(thin.multiply(dense), expected @ dense)


def test_transpose_is_stored_once_and_is_its_own_inverse(kernel: Kernel) -> None:
    matrix = SparseMatrix(csr(30, 20, 200, torch.float64, 4), kernel)
    assert matrix.transposed is matrix.transposed
    assert matrix.transposed.transposed is matrix
    torch.testing.assert_close(matrix.transposed.to_dense(), matrix.to_dense().T)
    rows = matrix.transposed.csr
    assert bool((rows.crow[1:] >= rows.crow[:-1]).all()) and rows.shape == (20, 30)


def test_a_transposition_is_the_stable_order_by_columns() -> None:
    matrix = csr(30, 20, 200, torch.float64, 6)
    crow, col, order = transposition_of(matrix)
    assert torch.equal(order, torch.argsort(matrix.col, stable=True))
    assert torch.equal(col.long(), row_of_entries(matrix.crow)[order])
    assert torch.equal(crow.diff(), torch.bincount(matrix.col, minlength=20))


def test_other_values_share_the_pattern(kernel: Kernel) -> None:
    matrix = SparseMatrix(csr(30, 20, 200, torch.float64, 5), kernel)
    double = matrix.with_values(2 * matrix.csr.value)
    assert double.csr.col.data_ptr() == matrix.csr.col.data_ptr()
    torch.testing.assert_close(double.transposed.to_dense(), 2 * matrix.to_dense().T)


def test_columns_are_int32_while_they_fit() -> None:
    kernel = kernel_or_skip("torch")
    made = SparseMatrix.from_scipy(sp.csr_array(np.eye(3)), kernel, torch.float32)
    assert made.csr.col.dtype == torch.int32 and made.transposed.csr.col.dtype == torch.int32
    wide = Csr(torch.tensor([0, 1]), torch.tensor([2**31 + 5]), torch.ones(1), (1, 2**31 + 6))
    assert SparseMatrix(wide, kernel).csr.col.dtype == torch.int64


def test_a_sparse_tensor_of_torch_sparse_is_accepted() -> None:
    class Stand:
        """What we use of `torch_sparse.SparseTensor`."""

        def csr(self) -> tuple[torch.Tensor, torch.Tensor, None]:
            return torch.tensor([0, 1, 3]), torch.tensor([1, 0, 2]), None

        def sparse_sizes(self) -> tuple[int, int]:
            return 2, 3

    matrix = SparseMatrix(csr_of(Stand()), kernel_or_skip("auto"))
    assert matrix.to_dense().tolist() == [[0, 1, 0], [1, 0, 1]]


def test_a_real_sparse_tensor_gives_the_same() -> None:
    package = pytest.importorskip("torch_sparse")
    value = torch.randn(3)
    given_matrix = package.SparseTensor(
        row=torch.tensor([1, 0, 1]), col=torch.tensor([2, 1, 0]), value=value, sparse_sizes=(2, 3)
    )
    matrix = SparseMatrix(csr_of(given_matrix), kernel_or_skip("torch-sparse"))
    torch.testing.assert_close(matrix.to_dense(), given_matrix.to_dense())
    dense = torch.randn(3, 4)
    torch.testing.assert_close(matrix @ dense, given_matrix.to_dense() @ dense)


def test_auto_is_the_default_and_says_what_it_uses() -> None:
    assert FactorSettings().kernel == "auto"
    assert build("kernel", KERNELS, "auto").describe().split()[0] in ("native", "torch")


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_has_a_summary(name: str) -> None:
    assert summary(KERNELS[name])
