"""What only the native kernel promises: the same bits for any number of threads, on every instruction set."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sancus.errors import UserError
from sancus.kernels import rows
from sancus.kernels.auto import AutoKernel
from sancus.kernels.base import Csr
from sancus.kernels.native import calls, library
from sancus.kernels.native.kernel import NativeKernel
from tests.unit.test_kernels import WIDTHS, assert_close, csr, exact

pytestmark = pytest.mark.skipif(not library.available(), reason="the native library was not compiled")
THREADS = range(1, 9)


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def product(matrix: Csr, dense: torch.Tensor, **options: object) -> torch.Tensor:
    out = dense.new_empty(matrix.shape[0], dense.shape[1])
    calls.spmm((matrix.crow, matrix.col), matrix.value, dense, out, **options)  # type: ignore[arg-type]
    return out


def power_law(rows: int, entries: int, dtype: torch.dtype = torch.float32) -> Csr:
    """A few rows hold most entries."""
    random = torch.Generator().manual_seed(0)
    row = (torch.rand(entries, generator=random) ** 6 * rows).long().sort().values
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(row, minlength=rows).cumsum(0)])
    col = torch.randint(0, rows, (entries,), generator=random).int()
    return Csr(crow, col, torch.randn(entries, generator=random, dtype=dtype), (rows, rows))


@pytest.mark.parametrize("width", [1, 16, 50, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_do_not_change_a_bit(width: int, dtype: torch.dtype) -> None:
    matrix = power_law(3000, 60_000, dtype)
    dense = torch.randn(3000, width, dtype=dtype)
    results = []
    for count in THREADS:
        torch.set_num_threads(count)
        results.append(product(matrix, dense))
    assert_close(results[0], exact(matrix, dense))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_column_is_the_same_alone_and_among_others() -> None:
    """No tile, tail or neighbour changes the order of a sum."""
    matrix, dense = power_law(500, 6000), torch.randn(500, 150)
    together = product(matrix, dense)
    for first, last in [(0, 1), (3, 20), (0, 64), (70, 150), (149, 150)]:
        assert torch.equal(product(matrix, dense[:, first:last]), together[:, first:last])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [513, 602, 640])
def test_panels_of_long_rows_do_not_change_a_bit(
    dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied panel by panel, because H is large, is summed as it was; also with strides and `+=`."""
    matrix = power_law(200, 200 * calls.LEAST_REUSE, dtype)
    wide, start = torch.randn(200, width + 5, dtype=dtype), torch.randn(200, width, dtype=dtype)
    dense = wide[:, 3 : width + 3]
    assert dense.numel() * dense.element_size() < calls.LEAST_BYTES
    results = []
    for least in (calls.LEAST_BYTES, 0):
        monkeypatch.setattr(calls, "LEAST_BYTES", least)
        assert calls._pays_in_panels(len(matrix.col), dense) == (not least)
        total = start.clone()
        calls.spmm((matrix.crow, matrix.col), matrix.value, dense, total, accumulate=True)
        results.append((product(matrix, dense), total))
    assert all(torch.equal(direct, panels) for direct, panels in zip(*results, strict=True))


@pytest.mark.parametrize("isa", range(len(library.ISAS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_every_instruction_set(isa: int, dtype: torch.dtype, index: torch.dtype) -> None:
    loaded = library.library()
    if isa > loaded.isa:
        pytest.skip(f"this machine has no {library.ISAS[isa]}")
    older = replace(loaded, isa=isa)
    matrix = csr(60, 50, 800, dtype, 1)
    matrix = replace(matrix, col=matrix.col.to(index))
    for width in WIDTHS:
        dense = torch.randn(50, width, dtype=dtype)
        assert_close(product(matrix, dense, native=older), exact(matrix, dense))


@given(rows_=st.integers(1, 30), heads=st.integers(1, 5), width=st.integers(1, 20), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_one_weight_a_head(rows_: int, heads: int, width: int, seed: int) -> None:
    matrix = csr(rows_, 15, 100, torch.float64, seed)
    value = torch.randn(100, heads, dtype=torch.float64)
    dense = torch.randn(15, heads * width, dtype=torch.float64)
    joined = product(replace(matrix, value=value), dense)
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        alone = replace(matrix, value=value[:, head].contiguous())
        assert torch.equal(joined[:, columns], product(alone, dense[:, columns]))


def test_output_may_be_columns_of_a_wider_matrix() -> None:
    matrix, dense, wide = csr(30, 20, 150, torch.float32, 1), torch.randn(20, 5), torch.full((30, 11), 7.0)
    calls.spmm((matrix.crow, matrix.col), matrix.value, dense, wide[:, 3:8])
    assert_close(wide[:, 3:8], exact(matrix, dense))
    assert bool((wide[:, :3] == 7).all()) and bool((wide[:, 8:] == 7).all())


@pytest.mark.parametrize(
    "change",
    [
        {"col": torch.tensor([0, 5], dtype=torch.int32)},
        {"col": torch.tensor([0, -1], dtype=torch.int32)},
        {"crow": torch.tensor([0, 1, 3])},
        {"crow": torch.tensor([1, 1, 2])},
        {"crow": torch.tensor([0, 3, 2])},
    ],
)
def test_an_index_outside_is_refused_before_it_is_used(change: dict[str, torch.Tensor]) -> None:
    good = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 4], dtype=torch.int32), torch.ones(2), (2, 5))
    NativeKernel().prepare(good)
    with pytest.raises(AssertionError):
        NativeKernel().prepare(replace(good, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dense", "out"),
    [
        (torch.ones(5, 3), torch.ones(2, 4)),
        (torch.ones(5, 3), torch.ones(3, 3)),
        (torch.ones(5, 3), torch.ones(2, 3, dtype=torch.float64)),
        (torch.ones(5, 3, dtype=torch.float16), torch.ones(2, 3, dtype=torch.float16)),
        (torch.ones(5, 3), torch.ones(3, 2).T),
    ],
)
def test_wrong_shapes_dtypes_and_strides_are_refused(dense: torch.Tensor, out: torch.Tensor) -> None:
    matrix = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 4], dtype=torch.int32), torch.ones(2), (2, 5))
    with pytest.raises(AssertionError):
        calls.spmm((matrix.crow, matrix.col), matrix.value, dense, out)


@given(n=st.integers(1, 40), width=st.sampled_from(WIDTHS), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_rows_by_number(dtype: torch.dtype, n: int, width: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    h = torch.randn(n, width, generator=random).to(dtype)
    index = torch.randperm(n, generator=random)[: int(torch.randint(0, n + 1, (1,), generator=random))]
    assert torch.equal(rows.take(h, index), h[index])
    strided = torch.randn(n, 2 * width + 1).to(dtype)[:, 1 : width + 1]
    assert torch.equal(rows.take(strided, index), strided[index])
    slot = torch.zeros(len(index) + 2, width, dtype=dtype)
    rows.take(h, index, out=slot[1:-1])
    assert torch.equal(slot[1:-1], h[index]) and not slot[0].any() and not slot[-1].any()
    start = torch.randn(len(index), width, generator=random).to(dtype)
    out = start.clone()
    rows.add_taken(h, index, out)
    assert torch.equal(out, start + h[index])
    total = h.clone()
    rows.add_at(start, index, total)
    assert torch.equal(total, h.index_add(0, index, start))


def test_rows_outside_are_refused() -> None:
    with pytest.raises(AssertionError, match="outside"):
        rows.take(torch.ones(3, 2), torch.tensor([0, 3]))
    with pytest.raises(AssertionError, match="outside"):
        rows.add_at(torch.ones(1, 2), torch.tensor([-1]), torch.ones(3, 2))


def test_threads_are_those_of_torch() -> None:
    """One OpenMP runtime: ours is the one that torch brought."""
    maps = Path("/proc/self/maps")
    if not maps.exists() or not library.library().threaded:
        pytest.skip("needs /proc and OpenMP")
    script = (
        "import torch; from sancus.kernels.native.library import library; library();"
        "print(len({l.split()[-1] for l in open('/proc/self/maps') if 'libgomp' in l or 'libiomp' in l}))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"


def test_without_the_library_torch_is_used_and_native_explains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library.library.cache_clear()
    try:
        monkeypatch.setenv("SANCUS_LIBRARY", str(tmp_path / "libsancus.so"))
        assert AutoKernel().describe() == "torch (CSR)"
        with pytest.raises(UserError, match=r"not compiled.*--kernel torch") as caught:
            NativeKernel()
        assert "\n" not in str(caught.value)
        (tmp_path / "libsancus.so").write_bytes(b"not a library")
        library.library.cache_clear()
        with pytest.raises(UserError, match="does not load"):
            NativeKernel()
    finally:
        library.library.cache_clear()


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    with pytest.raises(library.UnavailableError, match="another version"):
        library.load(library.library_path())
