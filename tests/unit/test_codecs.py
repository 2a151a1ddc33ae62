"""The contract of codecs, over the whole table: size, error, bias, extremes, seeds, threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.codecs import CODECS
from sancus.codecs.auto import AutoBits
from sancus.codecs.base import Codec, Moment
from sancus.comm.ledger import Stream
from sancus.errors import UserError
from sancus.exchange.encoding import EVERYONE, Encoder
from sancus.plugins import build

every_codec = pytest.mark.parametrize("name", CODECS)
SHORT = [f"{name}:tail=short" for name in ("int1", "int2", "int4", "int8", "auto")]
every_setting = pytest.mark.parametrize("name", [*CODECS, *SHORT])
CPU = torch.device("cpu")
BITS = {"int1": 1, "int2": 2, "int4": 4, "int8": 8, "auto": 1}
HERE = Stream(1, "forward", 2)


def codec_of(name: str) -> Codec:
    codec: Codec = build("codec", CODECS, name)
    return codec


def through(codec: Codec, x: torch.Tensor, seed: int = 0, stage: float = 0.5) -> torch.Tensor:
    """`decode(encode(x))`, over a wire of the promised shape."""
    wire = codec.encode(x, Moment(seed, stage), torch.ones(len(x)))
    promised = codec.wire(*x.shape, x.dtype, CPU, stage)
    assert (wire.shape, wire.dtype) == (promised.shape, promised.dtype)
    out = codec.decode(wire.clone(), *x.shape, x.dtype, stage)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    return out


def bin_of(name: str, x: torch.Tensor) -> torch.Tensor:
    """The largest error a value may have, `[n, f]`."""
    if name == "fp32":
        return torch.zeros_like(x)
    if name in ("fp16", "bf16"):
        precision = {"fp16": 2.0**-11, "bf16": 2.0**-8}[name]
        return x.abs() * precision + 2.0**-24
    least = x.amin(dim=1, keepdim=True)
    spread = x.amax(dim=1, keepdim=True) - least
    if name in SHORT:  # zero points and scales of 8 bits, rounded outwards
        name = name.removesuffix(":tail=short")
        spread = (spread + least.abs() * 2.0**-7) * (1 + 2.0**-7)
    return (spread / (2 ** BITS[name] - 1)).expand_as(x) * (1 + 1e-5) + 1e-30


@every_setting
@given(rows=st.integers(0, 9), columns=st.integers(1, 20), seed=st.integers(0, 2**62), double=st.booleans())
def test_the_error_is_within_the_bin(name: str, rows: int, columns: int, seed: int, double: bool) -> None:
    generator = torch.Generator().manual_seed(seed % 1000)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64 if double else torch.float32)
    if rows:
        out = through(codec_of(name), x, seed)
        slack = 1e-6 * x.abs().amax(dim=1, keepdim=True)
        assert ((out - x).abs() <= bin_of(name, x) + slack * (name != "fp32")).all()


@pytest.mark.parametrize("name", [*BITS, *SHORT])  # those that round by chance; the others' error is bounded
def test_decoding_is_right_on_average(name: str) -> None:
    x = torch.randn(6, 33, generator=torch.Generator().manual_seed(1))
    draws = 1000
    codec = codec_of(name)
    mean = sum(through(codec, x, seed) for seed in range(draws)) / draws
    deviation = bin_of(name, x) / 2 / draws**0.5  # a value between two levels varies by half a bin at most
    assert ((mean - x).abs() <= 5 * deviation + 1e-5).all()


@every_codec
@pytest.mark.parametrize("value", [0.0, 1.0, -0.37, 1e-42, 6e4, -3e-5, 12345.678])
def test_constant_rows_are_exact(name: str, value: float) -> None:
    x = torch.full((3, 11), value)
    expected = x.to({"fp16": torch.float16, "bf16": torch.bfloat16}.get(name, torch.float32)).float()
    assert torch.equal(through(codec_of(name), x), expected)


@every_codec
@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e30, 3e38])
def test_tiny_and_huge_rows_stay_finite_and_in_range(name: str, scale: float) -> None:
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(2)).clamp(-1, 1) * scale
    out = through(codec_of(name), x)
    assert torch.isfinite(out).all()
    limit = max(scale, 2.0**-24 if name == "fp16" else 0.0) * 1.01
    assert (out.abs() <= limit).all()


@every_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused_by_name(name: str, bad: float) -> None:
    codec = codec_of(name)
    x = torch.randn(4, 8)
    x[2, 5] = bad
    if codec.lossless:  # sends it as it is; the loss is watched
        assert torch.equal(through(codec, x).nan_to_num(), x.nan_to_num())
        return
    with pytest.raises(UserError, match=r"rank 2, layer 1, forward, epoch 7: row 2 .* NaN or infinity"):
        Encoder(codec).encode(x, torch.ones(4), HERE, EVERYONE, 7)


@every_codec
def test_the_same_moment_gives_the_same_bits_on_any_number_of_threads(name: str) -> None:
    x, codec = torch.randn(700, 40), codec_of(name)
    before = torch.get_num_threads()
    try:
        wires = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            wires.append(codec.encode(x, Moment(9, 0.3), torch.ones(700)))
        assert all(torch.equal(wire, wires[0]) for wire in wires)
    finally:
        torch.set_num_threads(before)
    if name.startswith("int") or name == "auto":
        assert not torch.equal(codec.encode(x, Moment(10, 0.3), torch.ones(700)), wires[0])


# Codec `auto`


@given(
    rows=st.integers(0, 400),
    budget=st.floats(1, 8),
    ramp=st.floats(0, 1),
    stage=st.floats(0, 1),
)
def test_auto_keeps_its_budget(rows: int, budget: float, ramp: float, stage: float) -> None:
    codec = AutoBits(budget, ramp)
    counts = codec.row_counts(rows, stage)
    assert sum(counts) == rows and min(counts) >= 0
    room = min(budget - 1, 8 - budget)
    wanted = budget + ramp * room * (2 * stage - 1)
    bits = sum(count * width for count, width in zip(counts, (1, 2, 4, 8), strict=True))
    assert bits <= rows * wanted * (1 + 1e-9) + 1e-9
    assert bits > rows * wanted - 14.001  # what rounding down to whole rows leaves


def test_auto_gives_more_bits_later_and_to_rows_that_matter() -> None:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(3))
    weight = torch.ones(64)
    weight[:8] = 100.0
    codec = AutoBits(2.5, 0.5)
    wires = [codec.encode(x, Moment(1, stage), weight) for stage in (0.0, 1.0)]
    assert len(wires[0]) < len(wires[1])
    out = codec.decode(wires[1], 64, 128, x.dtype, 1.0)
    error = (out - x).square().mean(dim=1)
    assert error[:8].max() < error[8:].mean()


@pytest.mark.parametrize("spec", ["auto:budget=0.5", "auto:budget=9", "auto:budget=nan", "auto:ramp=2"])
def test_bad_settings_of_auto_are_refused(spec: str) -> None:
    with pytest.raises(UserError, match="must be"):
        build("codec", CODECS, spec)


# Error feedback


@every_codec
def test_error_feedback_makes_the_mean_of_sends_right(name: str) -> None:
    """Over many sends receivers are told more truly what was meant, and residuals stay within bounds."""
    x = torch.randn(200, 24, generator=torch.Generator().manual_seed(4))
    encoder = Encoder(codec_of(name), epochs=40, feedback=True)
    total = torch.zeros_like(x)
    for epoch in range(40):
        wire = encoder.encode(x, torch.ones(200), HERE, 0, epoch)
        total += encoder.decode(wire, 200, x, epoch)
    plain = Encoder(codec_of(name), epochs=40)
    alone = sum(plain.decode(plain.encode(x, torch.ones(200), HERE, 0, e), 200, x, e) for e in range(40))
    assert isinstance(alone, torch.Tensor)
    with_feedback, without = (total / 40 - x).abs().mean(), (alone / 40 - x).abs().mean()
    assert with_feedback <= without
    assert (encoder.nbytes > 0) == (not encoder.codec.lossless)
    if name in ("int2", "int4", "int8"):
        assert with_feedback < 0.4 * without


def test_residuals_are_kept_apart_by_receiver_and_stream() -> None:
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(4))
    encoder = Encoder(codec_of("int1"), epochs=9, feedback=True)

    def send(stream: Stream, receiver: int, epoch: int) -> Any:
        return encoder.encode(x, torch.ones(5), stream, receiver, epoch)

    fresh = send(HERE, 0, 3)
    send(HERE, 1, 2)
    send(Stream(0, "forward", 2), 0, 2)
    other = Encoder(codec_of("int1"), epochs=9, feedback=True).encode(x, torch.ones(5), HERE, 0, 3)
    assert torch.equal(fresh, other)
    assert not torch.equal(send(HERE, 0, 3), fresh)  # now its own residual counts
