"""Headers: a message is used only if it says of itself what its receiver expects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.comm.clock import Clock
from sancus.comm.errors import DisagreementError
from sancus.comm.header import (
    PAYLOAD_HEADER,
    PAYLOAD_WORDS,
    PLAIN_HEADER,
    PLAIN_WORDS,
    Payload,
    Plain,
    blank,
    label_of,
    messages,
    seal,
    size_of,
    unseal,
)
from sancus.comm.ledger import Entry, Stream

CPU = torch.device("cpu")
HERE = Stream(2, "forward", 1)
MINE = Payload(17, HERE, 4)


def plain(operation: str = "all-gather", number: int = 3, label: int = 5, **other: Any) -> Plain:
    return Plain(operation, number, label, other.get("dtype", torch.float32), other.get("shape", (2, 3)))


def test_sizes_on_the_wire() -> None:
    assert (PLAIN_HEADER, PAYLOAD_HEADER) == (40, 64)
    assert size_of(plain().header(2, 0)) == 40 + 2 * 6 * 4
    assert size_of(MINE.header(torch.empty(2, 3), 1)) == 64 + 6 * 4
    assert size_of(plain().header(0, 0)) == size_of(MINE.header(torch.empty(0, 3), 1)) == 0


# Payloads


@given(
    dtype=st.sampled_from([torch.float32, torch.float64, torch.uint8]),
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    columns=st.integers(1, 5),
)
def test_payload_round_trip(dtype: torch.dtype, rows: list[int], columns: int) -> None:
    wires = [(torch.rand(count, columns) * 200).to(dtype) for count in rows]
    headers = [MINE.header(wire, 1) for wire in wires]
    sealed, received = seal(wires, headers, CPU), blank(headers, CPU)
    assert received.shape == sealed.shape
    received.copy_(sealed)
    for wire, header, message in zip(wires, headers, messages(received, headers), strict=True):
        if header is not None:
            content = header.check(message, 0)
            assert torch.equal(content.view(dtype).view(wire.shape), wire)
            assert content.data_ptr() == message.data_ptr() + PAYLOAD_HEADER, "a copy costs time"


@pytest.mark.parametrize(
    "field, wrong",
    [
        ("sequence", Payload(18, HERE, 4)),
        ("owner", Payload(17, Stream(2, "forward", 3), 4)),
        ("stream", Payload(17, Stream(3, "forward", 1), 4)),
        ("stream", Payload(17, Stream(2, "backward", 1), 4)),
        ("version", Payload(17, HERE, 3)),
        ("rows", torch.zeros(5, 3)),
        ("columns", torch.zeros(4, 2)),
        ("element size", torch.zeros(4, 3, dtype=torch.float64)),
        ("sequence", None),
    ],
)
def test_a_wrong_payload_names_field_and_owner(field: str, wrong: Any) -> None:
    wire = wrong if isinstance(wrong, torch.Tensor) else torch.zeros(4, 3)
    headers = [(wrong if isinstance(wrong, Payload) else MINE).header(wire, 1)]
    sealed = seal([wire], headers, CPU) if wrong is not None else blank(headers, CPU)
    expected = MINE.header(torch.empty(4, 3, device="meta"), 1)
    assert expected is not None
    with pytest.raises(DisagreementError) as caught:
        expected.check(sealed, rank=0)
    story = str(caught.value)
    assert f"has {field} " in story
    assert story.startswith("rank 0: the payload from rank 1 (forward, layer 2, epoch 4)")
    assert story.endswith(": the ranks disagree")


def test_every_word_of_a_payload_is_checked() -> None:
    like = torch.zeros(2, 2)
    header = MINE.header(like, 1)
    assert header is not None
    for place, name in enumerate(PAYLOAD_WORDS):
        sealed = seal([like], [header], CPU)
        sealed[8 * place] ^= 1
        with pytest.raises(DisagreementError, match=f"has {name} "):
            header.check(sealed, 0)


@given(place=st.integers(0, 8 * 6 * 5 * 4 - 1))
def test_every_bit_of_a_payload_is_checked(place: int) -> None:
    wire = torch.rand(6, 5)
    header = MINE.header(wire, 1)
    assert header is not None
    sealed = seal([wire], [header], CPU)
    sealed[PAYLOAD_HEADER + place // 8] ^= 1 << place % 8
    with pytest.raises(DisagreementError, match=r"from rank 1 \(forward, layer 2, epoch 4\) has checksum "):
        header.check(sealed, 0)


# Plain messages


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_plain_round_trip(counts: list[int]) -> None:
    tensor, out = torch.rand(sum(counts), 2, 3), torch.zeros(sum(counts), 2, 3)
    headers = [plain().header(rows, sender) for sender, rows in enumerate(counts)]
    unseal(seal(tensor.split(counts), headers, CPU), headers, out, 0)
    assert torch.equal(out, tensor)


def test_rows_of_no_columns_and_a_single_number_travel_too() -> None:
    for tensor in (torch.zeros(2, 0), torch.tensor(3.0), torch.ones(2, requires_grad=True)):
        headers = [plain(shape=tuple(tensor.shape)).header(1, 0)]
        sealed, out = seal([tensor], headers, CPU), torch.zeros_like(tensor).detach()
        assert len(sealed) == PLAIN_HEADER + tensor.nbytes
        unseal(sealed, headers, out, 0)
        assert torch.equal(out, tensor)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("kind", plain("all-to-all")),
        ("kind", plain(dtype=torch.int32)),
        ("number", plain(number=4)),
        ("label", plain(label=6)),
        ("shape", plain(shape=(3, 2))),
    ],
)
def test_a_wrong_plain_message_names_field_and_sender(field: str, wrong: Plain) -> None:
    sealed = seal([torch.ones(1, *wrong.shape).to(wrong.dtype)], [wrong.header(1, 1)], CPU)
    out = torch.zeros(1, 2, 3)
    with pytest.raises(DisagreementError, match=rf"rank 0: all-gather 3: what came from rank 1 has {field} "):
        unseal(sealed, [None, plain().header(1, 1)], out, 0)
    assert not out.any()


def test_every_word_of_a_plain_message_is_checked() -> None:
    headers = [plain().header(1, 0)]
    for place, name in enumerate(PLAIN_WORDS):
        sealed = seal([torch.zeros(1, 2, 3)], headers, CPU)
        sealed[8 * place] ^= 1
        with pytest.raises(DisagreementError, match=f"has {name} "):
            unseal(sealed, headers, torch.zeros(1, 2, 3), 0)


def test_a_message_that_never_came_is_none() -> None:
    first = [
        Plain("broadcast", 1, 0, torch.uint8, (2, 3)).header(1, 0)
    ]  # as near to zeros as a header can be
    out = torch.ones(1, 2, 3, dtype=torch.uint8)
    with pytest.raises(DisagreementError, match="has number 0, not 1"):
        unseal(blank(first, CPU), first, out, 0)
    assert out.all()


@given(place=st.integers(0, 8 * 24 - 1))
def test_every_bit_of_a_plain_message_is_checked(place: int) -> None:
    headers, out = [plain().header(1, 0)], torch.zeros(1, 2, 3)
    sealed = seal([torch.rand(1, 2, 3)], headers, CPU)
    sealed[PLAIN_HEADER + place // 8] ^= 1 << place % 8
    with pytest.raises(DisagreementError, match="has checksum "):
        unseal(sealed, headers, out, 0)
    assert not out.any()


def test_a_label_tells_purpose_stream_and_moment() -> None:
    entries = [
        Entry("parameter"),
        Entry("agreement"),
        *(Entry("payload", s) for s in (HERE, Stream(3, "forward", 1))),
    ]
    entries += [Entry("payload", Stream(2, "backward", 1)), Entry("evaluation", HERE)]
    moments = [Clock(0), Clock(1), Clock(1, 1), Clock(1, 1, "evaluation")]
    labels = {label_of(entry, clock) for entry in entries for clock in moments}
    assert len(labels) == len(moments) * len(entries)
    other = Entry("payload", Stream(2, "forward", 0))
    assert label_of(Entry("payload", HERE), moments[1]) == label_of(other, moments[1])
