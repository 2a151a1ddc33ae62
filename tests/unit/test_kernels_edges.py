"""The operators of attention: values, gradients, and what torch asks of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sancus.kernels.edges import edge_softmax, sddmm, spmm
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.native import calls, library
from tests.unit.test_kernels import csr, kernel_or_skip

NAMES = ("native", "torch")
OPERATORS = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def matrix_of(
    name: str,
    rows: int = 9,
    columns: int = 7,
    entries: int = 40,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> SparseMatrix:
    return SparseMatrix(csr(rows, columns, entries, dtype, seed), kernel_or_skip(name))


def dense_scores(matrix: SparseMatrix, left: torch.Tensor, right: torch.Tensor, heads: int) -> torch.Tensor:
    n, f = left.shape
    left, right = left.view(n, heads, f // heads), right.view(len(right), heads, f // heads)
    return (left[matrix.row_of_entries()] * right[matrix.csr.col.long()]).sum(2)


def dense_softmax(matrix: SparseMatrix, score: torch.Tensor) -> torch.Tensor:
    parts = score.split(matrix.csr.crow.diff().tolist())
    return torch.cat([score[:0], *(part.softmax(0) for part in parts)])


@given(
    rows=st.integers(0, 20),
    columns=st.integers(1, 20),
    entries=st.integers(0, 150),
    heads=st.integers(1, 5),
    width=st.integers(1, 20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 9999),
)
@settings(deadline=None)
@OPERATORS
def test_values_are_those_of_dense(
    name: str, rows: int, columns: int, entries: int, heads: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    matrix = matrix_of(name, rows, columns, entries, dtype, seed)
    left, right = (
        torch.randn(rows, heads * width, dtype=dtype),
        torch.randn(columns, heads * width, dtype=dtype),
    )
    score = sddmm(matrix, left, right, heads)
    assert score.shape == (matrix.nnz, heads)
    torch.testing.assert_close(score, dense_scores(matrix, left, right, heads), rtol=1e-4, atol=1e-5)
    share = edge_softmax(matrix, score)
    torch.testing.assert_close(share, dense_softmax(matrix, score), rtol=1e-5, atol=1e-7)
    out = spmm(matrix, share, right)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        expected = matrix.with_values(share[:, head]).to_dense() @ right[:, part]
        torch.testing.assert_close(out[:, part], expected, rtol=1e-4, atol=1e-5)


@OPERATORS
@pytest.mark.parametrize("heads", [1, 3])
def test_gradients(name: str, heads: int) -> None:
    matrix = matrix_of(name)
    left = torch.randn(9, 2 * heads, dtype=torch.float64, requires_grad=True)
    right = torch.randn(7, 2 * heads, dtype=torch.float64, requires_grad=True)
    score = torch.randn(40, heads, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: sddmm(matrix, a, b, heads), (left, right))
    assert torch.autograd.gradcheck(lambda s: edge_softmax(matrix, s), (score,))
    assert torch.autograd.gradcheck(lambda s, h: spmm(matrix, s, h), (score, right))


@OPERATORS
def test_gradient_of_one_value_an_entry(name: str) -> None:
    matrix = matrix_of(name)
    value = torch.randn(40, dtype=torch.float64, requires_grad=True)
    dense = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, h: spmm(matrix, v, h), (value, dense))


@OPERATORS
def test_a_whole_attention_layer_has_the_gradient_of_dense(name: str) -> None:
    matrix = matrix_of(name, 30, 25, 200)
    inputs = [torch.randn(n, 8, dtype=torch.float64, requires_grad=True) for n in (30, 25, 25)]
    query, key, value = inputs
    share = edge_softmax(matrix, sddmm(matrix, query, key, 2))
    mine = torch.autograd.grad((spmm(matrix, share, value) ** 2).sum(), inputs)
    share = dense_softmax(matrix, dense_scores(matrix, query, key, 2))
    heads = [
        torch.zeros(30, 25, dtype=torch.float64).index_put(
            (matrix.row_of_entries(), matrix.csr.col.long()), share[:, head], accumulate=True
        )
        @ value[:, 4 * head : 4 * head + 4]
        for head in range(2)
    ]
    theirs = torch.autograd.grad((torch.cat(heads, 1) ** 2).sum(), inputs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@OPERATORS
def test_they_are_operators_as_torch_wants_them(name: str) -> None:
    matrix = matrix_of(name)
    structure = (matrix.csr.crow, matrix.csr.col, *matrix.transposition)
    score = torch.randn(40, 2, dtype=torch.float64, requires_grad=True)
    left = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    right = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(torch.ops.sancus.spmm.default, (*structure, score, right, name))
    torch.library.opcheck(torch.ops.sancus.sddmm.default, (*structure, left, right, 2, name))
    torch.library.opcheck(torch.ops.sancus.edge_softmax.default, (matrix.csr.crow, score, name))


@OPERATORS
def test_large_scores_do_not_overflow_and_a_row_adds_up_to_one(name: str) -> None:
    matrix = matrix_of(name, dtype=torch.float32)
    share = edge_softmax(matrix, torch.randn(40, 2) * 1e4)
    totals = torch.zeros(9, 2).index_add_(0, matrix.row_of_entries(), share)
    torch.testing.assert_close(totals, (matrix.csr.crow.diff() > 0).float()[:, None].expand(9, 2))


def test_exp_is_within_two_units_of_the_last_place() -> None:
    matrix = matrix_of("native")
    x = -torch.cat([torch.linspace(0, 70, 200_001), torch.logspace(-30, 1, 10_001)])
    crow = torch.tensor([0, len(x) + 1])
    share = calls.edge_softmax(crow, torch.cat([torch.zeros(1), x])[:, None]).flatten()
    assert matrix.nnz and torch.all(share > 0)
    ratio = (share / share[0])[1:].double() / x.double().exp()  # division adds half a unit
    assert float((ratio - 1).abs().max()) < 3 * torch.finfo(torch.float32).eps


def test_masked_scores_get_no_share() -> None:
    matrix = matrix_of("native")
    score = torch.tensor([0.0, -torch.inf, -200.0, 1.0])[:, None]
    share = calls.edge_softmax(torch.tensor([0, 4]), score)
    torch.testing.assert_close(share, score.softmax(0))
    assert share[1] == 0 and matrix.nnz


def test_threads_and_instruction_sets() -> None:
    kernel_or_skip("native")
    matrix = csr(3000, 2000, 40_000, torch.float32, 1)
    pattern = matrix.crow, matrix.col
    left, right = torch.randn(3000, 40), torch.randn(2000, 40)
    expected = None
    for count in range(1, 9):
        torch.set_num_threads(count)
        score = calls.sddmm(pattern, left, right, 4)
        share = calls.edge_softmax(matrix.crow, score)
        back = calls.edge_softmax_backward(matrix.crow, share, score)
        expected = expected or (score, share, back)
        assert all(torch.equal(a, b) for a, b in zip(expected, (score, share, back), strict=True))
    assert expected is not None
    for isa in range(library.library().isa):
        older = replace(library.library(), isa=isa)
        score = calls.sddmm(pattern, left, right, 4, native=older)
        share = calls.edge_softmax(matrix.crow, expected[0], native=older)
        back = calls.edge_softmax_backward(matrix.crow, expected[1], expected[0], native=older)
        for a, b in zip(expected, (score, share, back), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_an_index_outside_is_refused() -> None:
    matrix = matrix_of("native")
    with pytest.raises(AssertionError, match="outside"):
        spmm(matrix, torch.ones(40, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64))
    with pytest.raises(AssertionError, match="outside"):
        sddmm(matrix, torch.ones(9, 2, dtype=torch.float64), torch.ones(5, 2, dtype=torch.float64))


def test_strided_operands() -> None:
    matrix = matrix_of("native")
    left, right = torch.randn(4, 9, dtype=torch.float64).T, torch.randn(7, 9, dtype=torch.float64)[:, 2:6]
    expected = dense_scores(matrix, left.contiguous(), right.contiguous(), 2)
    torch.testing.assert_close(sddmm(matrix, left, right, 2), expected)
