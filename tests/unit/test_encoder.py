"""The encoder of a direction: stages of the training, random numbers of a payload, error feedback."""

from __future__ import annotations

import itertools

import pytest
import torch

from sancus.codecs.low_bit import Int2
from sancus.comm.ledger import Stream
from sancus.exchange.encoding import Encoder

STREAM = Stream(1, "forward", 0)
ONES = torch.ones(6)


def payload_of(seed: int) -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))


def test_the_first_epoch_is_stage_0_and_the_last_stage_1() -> None:
    encoder = Encoder(Int2(), epochs=5)
    assert [encoder.stage(epoch) for epoch in (-1, 0, 2, 4, 9)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert Encoder(Int2(), epochs=1).stage(0) == 0.0


def test_every_payload_is_rounded_by_numbers_of_its_own() -> None:
    """Another seed, epoch, layer, direction, owner or receiver rounds otherwise; the same ones alike."""
    payload = payload_of(0)

    def wire(
        seed: int = 0, epoch: int = 0, layer: int = 1, side: int = 0, owner: int = 0, to: int = 1
    ) -> bytes:
        stream = Stream(layer, ("forward", "backward")[side], owner)  # type: ignore[arg-type]
        code = Encoder(Int2(), seed=seed, epochs=3).encode(payload, ONES, stream, to, epoch)
        return code.numpy().tobytes()

    codes = [
        wire(),
        wire(seed=1),
        wire(epoch=1),
        wire(layer=2),
        wire(side=1),
        wire(owner=1),
        wire(to=2),
        wire(to=-1),
    ]
    for one, other in itertools.combinations(codes, 2):
        assert one != other
    assert wire() == codes[0]


@pytest.mark.parametrize("receivers", [[1], [1, 2]])
def test_feedback_makes_up_for_what_rounding_left_out(receivers: list[int]) -> None:
    """Receiver by receiver: the residual is what was meant, minus what arrived, and is added next time."""
    encoder = Encoder(Int2(), epochs=10, feedback=True)
    left = {receiver: torch.zeros(6, 5) for receiver in receivers}
    for epoch in range(4):
        payload = payload_of(epoch)
        for receiver in receivers:
            meant = payload + left[receiver]
            wire = encoder.encode(payload, ONES, STREAM, receiver, epoch)
            plain = Encoder(Int2(), epochs=10).encode(meant, ONES, STREAM, receiver, epoch)
            assert torch.equal(wire, plain), "the same code as of what is meant"
            rest = meant - encoder.decode(wire, 6, payload, epoch)
            longest, length = payload.norm(dim=1, keepdim=True), rest.norm(dim=1, keepdim=True)
            left[receiver] = torch.where(length > longest, rest / length * longest, rest)
            assert encoder.residuals is not None
            torch.testing.assert_close(encoder.residuals[receiver].pull(STREAM), left[receiver])
            left[receiver] = encoder.residuals[receiver].pull(STREAM).clone()
    assert encoder.nbytes == len(receivers) * payload.nbytes
