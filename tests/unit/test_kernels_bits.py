"""Packing: one meaning on every machine, right on average, exact where it can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sancus.kernels import bits, bits_torch
from sancus.kernels.native import calls, library

needs_native = pytest.mark.skipif(not library.available(), reason="the native library was not compiled")
BITS = pytest.mark.parametrize("width", bits.WIDTHS)


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def rows_of(n: int, columns: int, seed: int, spread: float = 1.0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, columns, generator=random) * spread


def decoded(packed: bits.PackedRows, width: int, columns: int) -> torch.Tensor:
    return bits.unpack(packed.data, packed.zero, packed.scale, width, columns)


def same(mine: tuple[torch.Tensor, ...], theirs: tuple[torch.Tensor, ...]) -> bool:
    """Equal to the bit, and not-a-number where the other is."""
    return all(
        a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(mine, theirs, strict=True)
    )


@needs_native
@given(
    n=st.integers(1, 12),
    columns=st.integers(1, 150),
    width=st.sampled_from(bits.WIDTHS),
    seed=st.integers(-(2**63), 2**63 - 1),
    first=st.integers(-(2**63), 2**63 - 20),
    power=st.integers(-44, 38),
    strange=st.sampled_from([None, float("nan"), float("inf"), -float("inf"), -0.0, 3e38, -3e38, 1e-45]),
    coarse=st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_native_and_torch_give_the_same_bits(
    n: int, columns: int, width: int, seed: int, first: int, power: int, strange: float | None, coarse: bool
) -> None:
    x = rows_of(n, columns, seed % 1000, 10.0**power)
    if strange is not None:
        x[0, seed % columns] = strange
    row_ids = first + torch.arange(n)
    native = calls.pack(x, width, seed, row_ids, coarse=coarse)
    reference = bits_torch.pack(x, width, seed, row_ids, coarse=coarse)
    assert same(native, reference)
    if coarse:
        assert all(torch.equal(end, end.bfloat16().float()) for end in native[1:3] if native[3].all())
    out = torch.empty(n, columns)
    calls.unpack(*native[:3], width, out)
    assert same((out,), (bits_torch.unpack(*native[:3], width, columns),))


@needs_native
@BITS
@pytest.mark.parametrize("isa", range(len(library.ISAS)))
def test_every_instruction_set_gives_the_same_bits(width: int, isa: int) -> None:
    loaded = library.library()
    if isa > loaded.isa:
        pytest.skip(f"this machine has no {library.ISAS[isa]}")
    older = replace(loaded, isa=isa)
    for columns in (1, 7, 8, 63, 64, 65, 200):
        x, row_ids = rows_of(20, columns, 3), torch.arange(20)
        packed = calls.pack(x, width, 5, row_ids, native=older)
        assert same(packed, bits_torch.pack(x, width, 5, row_ids))
        out = torch.empty(20, columns)
        calls.unpack(*packed[:3], width, out, native=older)
        assert same((out,), (bits_torch.unpack(*packed[:3], width, columns),))


@BITS
def test_known_bits(width: int) -> None:
    """Written down once: no later change of the code may change what crosses the wire."""
    x = torch.arange(24, dtype=torch.float32).reshape(2, 12).sin()
    packed = bits.pack(x, width, seed=42, row_ids=torch.tensor([7, 1_000_000_007]))
    assert packed.data.flatten().tolist() == KNOWN[width]


@needs_native
@BITS
def test_threads_do_not_change_a_bit(width: int) -> None:
    x, row_ids = rows_of(4000, 100, 1), torch.arange(4000)
    results = []
    for count in range(1, 9):
        torch.set_num_threads(count)
        packed = bits.pack(x, width, 9, row_ids)
        results.append((*packed, decoded(packed, width, 100)))
    assert all(same(results[0], other) for other in results[1:])


@BITS
def test_rows_do_not_depend_on_their_company(width: int) -> None:
    x, row_ids = rows_of(50, 33, 2), torch.randperm(50)
    whole = bits.pack(x, width, 1, row_ids)
    some = torch.tensor([3, 17, 4])
    part = bits.pack(x[some], width, 1, row_ids[some])
    assert same(part, tuple(t[some] for t in whole))


@BITS
def test_decoding_is_right_on_average(width: int) -> None:
    x = rows_of(4, 64, 3)
    draws = 4000
    total = torch.zeros(4, 64, dtype=torch.float64)
    for seed in range(draws):
        total += decoded(bits.pack(x, width, seed, torch.arange(4)), width, 64)
    scale = (x.amax(1) - x.amin(1)) / (2**width - 1)
    allowed = 5 * scale[:, None] * 0.5 / draws**0.5 + 1e-6  # five deviations of a coin
    assert bool(((total / draws - x).abs() <= allowed).all())


@BITS
def test_error_is_less_than_a_level_and_the_ends_are_exact(width: int) -> None:
    x = rows_of(30, 100, 4)
    packed = bits.pack(x, width, 1, torch.arange(30))
    error = (decoded(packed, width, 100) - x).abs()
    assert bool((error <= packed.scale[:, None] * (1 + 1e-5)).all())
    lowest = x.argmin(1, keepdim=True)
    assert bool((error.gather(1, lowest) == 0).all())


@BITS
@pytest.mark.parametrize("value", [0.0, -1.5, 3.4e38, 1e-45, 1e30])
def test_a_constant_row_is_exact(width: int, value: float) -> None:
    x = torch.full((3, 37), value)
    packed = bits.pack(x, width, 1, torch.arange(3))
    assert torch.equal(decoded(packed, width, 37), x)


@BITS
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 36])
def test_a_row_that_is_not_finite_is_told_and_decodes_to_nan(width: int, bad: float, place: int) -> None:
    x = rows_of(3, 37, 5)
    x[1, place] = bad
    packed = bits.pack(x, width, 1, torch.arange(3))
    assert packed.finite.tolist() == [True, False, True]
    assert decoded(packed, width, 37).isnan().any(1).tolist() == [False, True, False]


@BITS
def test_a_range_beyond_float32_stays_finite(width: int) -> None:
    x = torch.tensor([[-3e38, 3e38, 0.0]])
    assert bool(decoded(bits.pack(x, width, 1, torch.arange(1)), width, 3).isfinite().all())


@BITS
@pytest.mark.parametrize(("n", "columns"), [(0, 5), (3, 0), (0, 0)])
def test_nothing_is_legal(width: int, n: int, columns: int) -> None:
    packed = bits.pack(torch.empty(n, columns), width, 1, torch.arange(n))
    assert packed.data.shape == (n, bits.packed_bytes(columns, width)) and packed.zero.shape == (n,)
    assert bool(packed.finite.all()) and decoded(packed, width, columns).shape == (n, columns)


@BITS
def test_strides_and_dtypes(width: int) -> None:
    wide = rows_of(20, 50, 6)
    row_ids = torch.arange(20)
    expected = bits.pack(wide[:, 3:40].contiguous(), width, 1, row_ids)
    assert same(bits.pack(wide[:, 3:40], width, 1, row_ids), expected)
    assert same(bits.pack(wide[:, 3:40].double(), width, 1, row_ids), expected)
    assert same(bits.pack(wide[:, 3:40].T.contiguous().T, width, 1, row_ids), expected)
    slot = torch.zeros(20, 50)
    bits.unpack(*expected[:3], width, 37, out=slot[:, 3:40])
    assert torch.equal(slot[:, 3:40], decoded(expected, width, 37))
    assert not slot[:, :3].any() and not slot[:, 40:].any()


def test_seeds_rows_and_columns_all_matter() -> None:
    x = torch.linspace(0, 1, 256).expand(64, 256).contiguous()
    one = bits.pack(x, 1, 1, torch.arange(64)).data
    assert len({tuple(row) for row in one.tolist()}) == 64
    assert not torch.equal(one, bits.pack(x, 1, 2, torch.arange(64)).data)
    assert not torch.equal(one, bits.pack(x, 1, 1, 64 + torch.arange(64)).data)


def test_the_random_numbers_are_uniform_and_uncorrelated() -> None:
    uniform = bits_torch._uniform(3, torch.arange(2000), 256).double()
    counts = torch.histc(uniform, 64, 0, 1)
    expected = uniform.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 120  # chi square, 63 degrees: p < 1e-5
    centred = uniform - 0.5
    for other in (centred.roll(1, 0), centred.roll(1, 1), centred.roll(64, 1)):
        assert abs(float((centred * other).mean())) * 12 < 5 / uniform.numel() ** 0.5


def test_other_widths_are_refused() -> None:
    with pytest.raises(AssertionError, match="3 bits"):
        bits.pack(torch.ones(1, 1), 3, 0, torch.arange(1))


KNOWN: dict[int, list[int]] = {
    1: [142, 5, 142, 7],
    2: [185, 209, 27, 184, 129, 46],
    4: [215, 158, 18, 213, 175, 4, 179, 207, 5, 145, 238, 8],
    8: [
        128,
        236,
        244,
        147,
        31,
        6,
        92,
        213,
        255,
        181,
        59,
        0,
        55,
        180,
        255,
        211,
        88,
        0,
        27,
        145,
        244,
        235,
        125,
        15,
    ],
}
