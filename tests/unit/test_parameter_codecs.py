"""The contract of parameter codecs, over the whole table: sums, equal bits, bytes, memory, bad numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sancus.comm.group import Group
from sancus.comm.header import PLAIN_HEADER
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.exchange.health import Health
from sancus.models.settings import ModelSettings
from sancus.parameters import PARAMETER_CODECS
from sancus.parameters.base import ParameterCodec
from sancus.parameters.codes import FewBits, Whole
from sancus.parameters.sum_by_codes import Part, sum_by_codes
from sancus.runs.checkpoints import contents
from sancus.training.parameter_sync import AverageOfWeights, SumOfGradients, make_parameter_codec
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of, with_train_nodes
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

SETTINGS = ["int1:row=512", "low-rank:rank=1", "low-rank:rank=2,bits=8", "low-rank:rank=3,bits=4"]
DIFFERENCES = ["int4:of=differences", "low-rank:rank=2,bits=4,of=differences"]
LOSSY = [name for name in PARAMETER_CODECS if name != "fp32"]
every_codec = pytest.mark.parametrize("spec", [*PARAMETER_CODECS, *SETTINGS, *DIFFERENCES])
every_lossy = pytest.mark.parametrize("spec", [*LOSSY, *SETTINGS])
SHAPES = [(37, 16), (16,), (16, 5), (5,), (3, 2, 40), ()]
CALLS = 60
Tensors = list[torch.Tensor]


def gradients(rank: int, call: int = 0, dtype: torch.dtype = torch.float32) -> Tensors:
    """What one rank gives: the sizes of tensors differ a lot, as those of gradients do."""
    drawn = torch.Generator().manual_seed(100 * call + rank)
    return [
        torch.randn(shape, generator=drawn, dtype=dtype) * 10.0**-place for place, shape in enumerate(SHAPES)
    ]


def on_ranks(ranks: int, function: Callable[[Group], Any]) -> list[Any]:
    return results(run_threads(ranks, function))


def true_sum(ranks: int, call: int = 0, dtype: torch.dtype = torch.float32) -> Tensors:
    return [sum(parts) for parts in zip(*(gradients(r, call, dtype) for r in range(ranks)), strict=True)]  # type: ignore[misc]


def flat(tensors: Tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@every_codec
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_ranks_get_the_same_bits_in_the_shapes_that_they_gave(
    spec: str, ranks: int, dtype: torch.dtype
) -> None:
    def two_calls(group: Group) -> list[Tensors]:
        codec = make_parameter_codec(spec)
        return [codec.sum(gradients(group.rank, call, dtype), group, 7 + call) for call in range(2)]

    first, *others = on_ranks(ranks, two_calls)
    for sums in first:
        assert [(tuple(one.shape), one.dtype) for one in sums] == [(shape, dtype) for shape in SHAPES]
    for other in others:
        for ours, theirs in zip(first, other, strict=True):
            assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_full_precision_is_the_flat_all_reduce_bit_for_bit() -> None:
    def both(group: Group) -> tuple[Tensors, torch.Tensor]:
        given = gradients(group.rank)
        reduced = flat(given)
        group.all_reduce(reduced)
        return make_parameter_codec("fp32").sum(given, group, 1), reduced

    for sums, reduced in on_ranks(3, both):
        assert flat(sums).equal(reduced)


@every_codec
def test_a_rank_alone_gets_back_what_it_gave(spec: str) -> None:
    def alone(group: Group) -> Tensors:
        return make_parameter_codec(spec).sum(gradients(0), group, 1)

    (sums,) = on_ranks(1, alone)
    assert all(ours.equal(given) for ours, given in zip(sums, gradients(0), strict=True))


@every_lossy
def test_what_is_left_out_is_late_and_not_lost(spec: str) -> None:
    """All sums so far and what the ranks remember make up all that was given: nothing is lost or doubled."""

    def many(group: Group) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        codec = make_parameter_codec(spec)
        so_far = torch.zeros(sum(map(math.prod, SHAPES)), dtype=torch.float64)
        for call in range(5):
            so_far += flat(codec.sum(gradients(group.rank, call, torch.float64), group, call))
        return so_far, codec.state()

    outcomes = on_ranks(3, many)
    given = sum(flat(true_sum(3, call, torch.float64)) for call in range(5))
    missing = given - outcomes[0][0]  # type: ignore[operator]
    remembered = torch.zeros_like(missing)
    starts = [0, *torch.tensor([math.prod(shape) for shape in SHAPES]).cumsum(0).tolist()]
    for _, state in outcomes:
        for name, tensor in state.items():
            kind, _, place = name.partition("/")
            if kind == "residual":
                start = starts[int(place)] if place else 0
                remembered[start : start + tensor.numel()] += tensor.reshape(-1)
    assert missing.abs().max() > 1e-4, "the codec leaves nothing out, so this shows nothing"
    torch.testing.assert_close(remembered, missing, rtol=1e-9, atol=1e-9)


@every_lossy
def test_what_is_left_out_does_not_grow(spec: str) -> None:
    """Error feedback: all that many sums lack together stays bounded, so that their mean becomes right."""

    def lacking(group: Group) -> list[float]:
        codec, total, norms = make_parameter_codec(spec), 0.0, []
        for call in range(CALLS):
            total = total + flat(codec.sum(gradients(group.rank), group, call)).double()
            norms.append(float((total - (call + 1) * flat(true_sum(2)).double()).norm()))
        return norms

    norms = on_ranks(2, lacking)[0]
    assert norms[0] > 0
    assert max(norms[CALLS // 2 :]) < 1.5 * max(norms[: CALLS // 2])


@every_codec
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_and_collectives_are_the_promised_ones(spec: str, ranks: int, dtype: torch.dtype) -> None:
    def count(group: Group) -> tuple[int, int, int]:
        before = group.number
        make_parameter_codec(spec).sum(gradients(group.rank, dtype=dtype), group, 1)
        return (
            group.ledger.wire_of("parameter"),
            group.ledger.wire_of("agreement"),
            group.number - before,
        )

    codec: ParameterCodec = make_parameter_codec(spec)
    counted = on_ranks(ranks, count)
    assert sum(wire for wire, _, _ in counted) == codec.wire_bytes(SHAPES, ranks, dtype.itemsize)
    collectives = codec.collectives(SHAPES) if ranks > 1 else 0
    assert [number for *_, number in counted] == [collectives] * ranks
    headers = collectives * ranks * (ranks - 1) * PLAIN_HEADER
    assert sum(agreement for _, agreement, _ in counted) == headers


def test_codes_make_a_wide_gradient_small() -> None:
    """Bytes in full over bytes by codec, of a first layer and a last one over 4 ranks."""
    shapes = [(1433, 64), (64,), (64, 7), (7,)]
    full = make_parameter_codec("fp32").wire_bytes(shapes, 4, 4)
    times = {
        spec: full / make_parameter_codec(spec).wire_bytes(shapes, 4, 4)
        for spec in ("int8", "int4", "int2", "int1", "low-rank", "low-rank:bits=8")
    }
    assert {spec: round(value, 1) for spec, value in times.items()} == {
        "int8": 3.5,
        "int4": 6.4,
        "int2": 12.8,
        "int1": 21.3,
        "low-rank": 14.5,
        "low-rank:bits=8": 52.2,
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@every_codec
def test_a_bad_number_of_one_rank_reaches_all(spec: str, bad: float) -> None:
    def spoil(group: Group) -> bool:
        codec, given = make_parameter_codec(spec), gradients(group.rank)
        codec.sum(given, group, 1)
        if group.rank == 1:
            given[0][3, 2] = bad
        return bool(torch.isfinite(codec.sum(given, group, 2)[0]).all())

    assert on_ranks(3, spoil) == [False] * 3


@every_codec
def test_a_codec_goes_on_from_its_state_bit_for_bit(spec: str) -> None:
    def both(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        codec, later = make_parameter_codec(spec), make_parameter_codec(spec)
        for call in range(3):
            codec.sum(gradients(group.rank, call), group, call)
        later.restore({name: tensor.clone() for name, tensor in codec.state().items()}, torch.device("cpu"))
        given = gradients(group.rank, 3)
        return flat(codec.sum(given, group, 3)), flat(later.sum(given, group, 3))

    assert all(through.equal(again) for through, again in on_ranks(2, both))


def test_a_matrix_of_low_rank_is_summed_exactly() -> None:
    """Rank 2 over all ranks together, and different columns on each: one call finds the span."""
    left = torch.randn(30, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    shares = [
        torch.randn(2, 12, generator=torch.Generator().manual_seed(rank + 2)).double() for rank in range(3)
    ]

    def total(group: Group) -> torch.Tensor:
        (summed,) = make_parameter_codec("low-rank:rank=2").sum([left @ shares[group.rank]], group, 5)
        return summed

    torch.testing.assert_close(on_ranks(3, total)[0], left @ sum(shares), rtol=1e-9, atol=1e-9)


def test_power_iterations_find_the_best_approximation() -> None:
    """The warm start: the sums of the same matrix without feedback become its truncated SVD (§4.2)."""
    drawn = torch.Generator().manual_seed(4)
    u, _ = torch.linalg.qr(torch.randn(40, 5, generator=drawn, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(20, 5, generator=drawn, dtype=torch.float64))
    sizes = torch.tensor([10.0, 5.0, 1.0, 0.5, 0.2], dtype=torch.float64)
    matrix = (u * sizes) @ v.T

    def iterate(group: Group) -> torch.Tensor:
        codec = make_parameter_codec("low-rank:rank=2")
        for call in range(12):
            (summed,) = codec.sum([matrix / group.size], group, call)
            state = codec.state()
            codec.restore(state | {"residual/0": torch.zeros_like(matrix)}, torch.device("cpu"))
        return summed

    best = (u[:, :2] * sizes[:2]) @ v[:, :2].T
    torch.testing.assert_close(on_ranks(2, iterate)[0], best, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", DIFFERENCES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_differences_find_a_gradient_that_stays(spec: str, ranks: int) -> None:
    """Of gradients themselves every call lacks about as much; of differences ever less is left to send."""

    def missing(group: Group, of: str) -> list[float]:
        codec, true = make_parameter_codec(spec.replace("differences", of)), flat(true_sum(ranks))
        return [
            float((flat(codec.sum(gradients(group.rank), group, call)) - true).norm() / true.norm())
            for call in range(CALLS)
        ]

    errors = on_ranks(ranks, lambda group: missing(group, "differences"))[0]
    others = on_ranks(ranks, lambda group: missing(group, "gradients"))[0]
    assert errors[0] == others[0], "the first difference is that to nothing"
    assert errors[-1] < errors[0] / 50 and errors[-1] < min(others[-5:]) / 20


def test_differences_follow_a_gradient_that_changes_once() -> None:
    def after_the_change(group: Group) -> tuple[float, float]:
        codec = make_parameter_codec("int8:of=differences")
        for call in range(30):
            total = flat(codec.sum(gradients(group.rank, call // 15), group, call))
        true = flat(true_sum(2, 1))
        return float((total - true).norm()), float(true.norm())

    for wrong, size in on_ranks(2, after_the_change):
        assert wrong < 1e-5 * size


def test_a_gradient_of_nothing_but_zeros_stays_zero() -> None:
    def zeros(group: Group) -> bool:
        codecs = map(make_parameter_codec, [*PARAMETER_CODECS, *SETTINGS, *DIFFERENCES])
        return all(not flat(codec.sum([torch.zeros(9, 9)], group, 1)).any() for codec in codecs)

    assert on_ranks(2, zeros) == [True, True]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("values", [1, 5, 511, 513, 4000])
def test_a_code_has_the_promised_size_and_pads_little(bits: int, values: int) -> None:
    code = FewBits(bits, 512)
    size = code.size(values, 4)
    slices = torch.randn(4, size)
    wire = code.encode(slices, 1)
    assert wire.shape == (4, code.nbytes(size, 4)) and 4 * size >= values
    assert 4 * size < values + 4 + 4 * -(-values // (4 * code.width)), "a value a row of padding at most"
    decoded = code.decode(wire, size, torch.float32)
    assert decoded.shape == slices.shape
    if bits <= 2:
        assert (decoded - slices).norm() <= slices.norm() * 1.001, "feedback needs a contraction"


def test_several_parts_travel_in_the_same_messages() -> None:
    def total(group: Group) -> list[torch.Tensor]:
        parts = [Part(torch.arange(5.0) + group.rank, Whole()), Part(torch.full((3,), 2.0), FewBits(8, 64))]
        return [one.sum for one in sum_by_codes(parts, group, 1)]

    for whole, coded in on_ranks(2, total):
        assert whole.tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]
        assert coded.tolist() == [4.0] * 3


@pytest.mark.parametrize(
    "spec, message",
    [
        ("int3", "parameter-codec 'int3' does not exist; choose from .* int4"),
        ("low-rank:rank=0", "rank=0 must be at least 1"),
        ("low-rank:bits=7", "bits=7 must be one of 4, 8, 32"),
        ("int4:rank=2", "has no setting 'rank'"),
        ("low-rank:of=weights", "of='weights' is not one of differences, gradients"),
    ],
)
def test_a_wrong_spec_is_one_line(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_parameter_codec(spec)


def test_averaged_weights_cross_in_full() -> None:
    with pytest.raises(UserError, match="choose --parameter-codec fp32 or --parameters sum"):
        TrainingSettings(parameters="average", parameter_codec="int4")

    def by_hand(group: Group) -> None:
        AverageOfWeights(group, Health(group), make_parameter_codec("int4"))

    (outcome,) = run_threads(1, by_hand)
    assert isinstance(outcome, UserError)


def test_a_gradient_that_is_not_finite_stops_all_ranks_with_its_name() -> None:
    def spoil(group: Group) -> None:
        model = nn.Linear(8, 8)
        model.weight.grad = torch.ones(8, 8) * (math.inf if group.rank == 1 else 1.0)
        SumOfGradients(group, Health(group), make_parameter_codec("low-rank:rank=2,bits=8")).before_update(
            model
        )

    for outcome in run_threads(3, spoil):
        assert isinstance(outcome, UserError) and "rank 1" in str(outcome) and "weight" in str(outcome)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = with_train_nodes(awkward_graph(), [0, 1, 3, 8])
    return shards_of(graph, "contiguous", 2, tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("spec", ["int1", "low-rank:rank=1,bits=8", "int4:of=differences"])
def test_a_run_that_is_resumed_goes_on_bit_for_bit(folder: Path, tmp_path: Path, spec: str) -> None:
    training = TrainingSettings(epochs=6, lr=0.1, check=1, parameter_codec=spec)
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch"),
        shape=ModelSettings(hidden=6, layers=2),
        training=training,
    )

    def through(group: Group) -> Tensors:
        trainer = thread_trainer(config, open_own(folder, group), group)
        trainer.run()
        return [tensor.clone() for tensor in trainer.model.state_dict().values()]

    def in_two(group: Group) -> Tensors:
        half = replace(config, training=replace(training, epochs=3))
        first = thread_trainer(half, open_own(folder, group), group)
        first.run()
        own = tmp_path / f"{spec}-{group.rank}"
        own.write_bytes(contents.pack_rank(first))
        second = thread_trainer(config, open_own(folder, group), group)
        contents.unpack(contents.pack(first, {}), second)
        contents.unpack_rank(own, second)
        assert first.sync.codec.state().keys() == second.sync.codec.state().keys() != set()
        second.run()
        return [tensor.clone() for tensor in second.model.state_dict().values()]

    for whole, resumed in zip(on_ranks(2, through), on_ranks(2, in_two), strict=True):
        assert all(a.equal(b) for a, b in zip(whole, resumed, strict=True))
