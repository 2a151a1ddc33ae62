"""Attention in one pass over the entries: values and gradients against a statement of its own, and masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from sancus.kernels.attention import Attended, AttentionGradients, RunningAttention, Weighing, fuses
from sancus.kernels.base import Csr
from sancus.kernels.masks import EdgeMask
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.native.library import Library, library
from sancus.kernels.torch_csr import TorchKernel
from tests.unit.test_kernels import csr, kernel_or_skip

SLOPE = 0.2
HEADS = [(1, 1), (1, 41), (2, 3), (3, 5), (5, 1), (8, 8), (12, 4), (20, 3), (1, 200)]
every_form = pytest.mark.parametrize("dynamic", [False, True], ids=["gat", "gatv2"])


class Case(NamedTuple):
    """What attention is computed from; keys are values in the dynamic form."""

    matrix: SparseMatrix
    values: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    mix: torch.Tensor | None
    mask: EdgeMask | None

    @property
    def leaves(self) -> list[torch.Tensor]:
        return [self.values, self.query, self.key if self.mix is None else self.mix]


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def case_of(
    heads: int, width: int, dynamic: bool, dropped: bool, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Case:
    """A hub of more entries than a chunk, rows and columns without any, and entries that repeat."""
    torch.manual_seed(seed)
    rows, columns = 12, 30
    plain = csr(rows - 2, columns - 1, 150, dtype, seed)
    hub = torch.randint(columns - 1, (200,), dtype=torch.int32)
    crow = torch.cat([plain.crow, plain.crow[-1:] + 200, plain.crow[-1:] + 200])
    col, value = torch.cat([plain.col.int(), hub]), torch.cat([plain.value, plain.value.new_ones(200)])
    matrix = SparseMatrix(Csr(crow, col, value, (rows, columns)), kernel_or_skip("native"))

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    values = leaf(columns, heads * width)
    query = leaf(rows, heads * width if dynamic else heads)
    mix = leaf(heads, width) if dynamic else None
    keys = torch.randint(-(2**31), 2**31, (rows + columns, heads)).int()
    mask = EdgeMask(keys[:rows, 0], keys[rows:], 0.4) if dropped else None
    return Case(matrix, values, query, values if dynamic else leaf(columns, heads), mix, mask)


def stated(case: Case) -> torch.Tensor:
    """Entry by entry, in torch."""
    matrix, heads = case.matrix, _heads(case)
    row, column = matrix.row_of_entries(), matrix.csr.col.long()
    score = F.leaky_relu(case.query[row] + case.key[column], SLOPE)
    if case.mix is not None:
        score = (score.unflatten(1, case.mix.shape) * case.mix).sum(2)
    share = torch.cat([part.softmax(0) for part in score.split(matrix.csr.crow.diff().tolist())])
    if case.mask is not None:
        share = share * case.mask.factors(matrix)
    rows = (case.values[column].unflatten(1, (heads, -1)) * share[:, :, None]).flatten(1)
    return rows.new_zeros(matrix.shape[0], rows.shape[1]).index_add(0, row, rows)


def computed(
    case: Case, gradient: torch.Tensor, native: Library | None = None
) -> tuple[Attended, list[torch.Tensor]]:
    """By the library: rows, and the gradients of the leaves."""
    weighing = Weighing(_heads(case), SLOPE, None if case.mix is None else case.mix.detach())
    values, query, key = (tensor.detach() for tensor in (case.values, case.query, case.key))
    width = values.shape[1] // weighing.heads
    running = RunningAttention(query, width, weighing, native=native)
    running.add(case.matrix, values, key, case.mask)
    attended = running.finish()
    gradients = AttentionGradients(query, weighing, attended, gradient, native=native)
    d_values, d_key = gradients.of_block(case.matrix, values, key, case.mask)
    d_query, d_mix = gradients.finish()
    if d_mix is not None:
        return attended, [d_values + d_key, d_query, d_mix]
    return attended, [d_values, d_query, d_key]


def _heads(case: Case) -> int:
    return case.query.shape[1] if case.mix is None else len(case.mix)


@every_form
@pytest.mark.parametrize("dropped", [False, True], ids=["whole", "dropped"])
@pytest.mark.parametrize(("heads", "width"), HEADS)
def test_values_and_gradients_are_those_of_the_entries(
    heads: int, width: int, dropped: bool, dynamic: bool
) -> None:
    case = case_of(heads, width, dynamic, dropped)
    expected = stated(case)
    gradient = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, case.leaves, gradient)
    for isa in range(library().isa + 1):
        attended, ours = computed(case, gradient, replace(library(), isa=isa))
        torch.testing.assert_close(attended.out, expected, rtol=1e-10, atol=1e-10)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@every_form
def test_float32_is_as_exact_as_its_type(dynamic: bool) -> None:
    for heads, width in HEADS:
        case = case_of(heads, width, dynamic, True, torch.float32)
        expected = stated(case)
        for isa in range(library().isa + 1):
            attended, _ = computed(case, torch.ones_like(expected), replace(library(), isa=isa))
            torch.testing.assert_close(attended.out, expected, rtol=1e-4, atol=1e-5)


@every_form
def test_the_same_bits_for_any_number_of_threads(dynamic: bool) -> None:
    case = case_of(8, 8, dynamic, True)
    big = csr(3000, 30, 60_000, torch.float64, 1)
    query = case.query.detach().repeat(250, 1)
    mask = EdgeMask(torch.arange(3000, dtype=torch.int32), case.mask.columns, 0.4) if case.mask else None
    case = case._replace(matrix=SparseMatrix(big, case.matrix.kernel), query=query, mask=mask)
    found = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        attended, gradients = computed(case, torch.ones(3000, 64, dtype=torch.float64))
        found.append([attended.out, *gradients])
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_without_a_gradient_nothing_is_kept_for_it_and_rows_are_the_same() -> None:
    case = case_of(3, 5, False, False)
    query, values, key = (tensor.detach() for tensor in (case.query, case.values, case.key))
    rows = []
    for differentiable in (True, False):
        running = RunningAttention(query, 5, Weighing(3, SLOPE, None), differentiable=differentiable)
        running.add(case.matrix, values, key)
        attended = running.finish()
        assert (attended.tilted is not None) is (attended.tilt is not None) is differentiable
        rows.append(attended.out)
    assert torch.equal(*rows)


def test_a_score_that_is_not_finite_is_not_hidden() -> None:
    case = case_of(2, 3, False, False)
    values, query, key = (tensor.detach().clone() for tensor in (case.values, case.query, case.key))
    key[:, 1] = torch.nan
    running = RunningAttention(query, 3, Weighing(2, SLOPE, None))
    running.add(case.matrix, values, key)
    rows = running.finish().out[case.matrix.csr.crow.diff() > 0]
    assert rows[:, :3].isfinite().all() and rows[:, 3:].isnan().all()


def test_it_runs_where_the_kernel_is_native() -> None:
    matrix = case_of(1, 1, False, False).matrix
    assert fuses(matrix) and not fuses(SparseMatrix(matrix.csr, TorchKernel()))
