"""Beside Sylvie Figures 9 and 10."""

from __future__ import annotations

from experiments.engine.measured import Measured, span


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    gone = [1 - value for value in measured.each("comm_ratio", codec="int1").values()]
    epochs = [
        1
        - measured.value("seconds", data=data, codec="int1")
        / measured.value("seconds", data=data, codec="fp32")
        for data in measured.labels("data")
    ]
    quantiser = (
        f" The quantiser takes {measured.span('codec_share', codec='int1')} of an epoch with one bit and "
        f"{measured.span('codec_share', codec='int8')} with eight (Figure 10 of the paper: 5.9 % on two servers)."
        if measured.each("codec_share", codec="int1")
        else ""
    )
    return (
        f"**Beside the paper.** The payload falls nearly in proportion to the bits: {measured.span('payload_fewer', codec='fp16')} "
        f"smaller with fp16, {measured.span('payload_fewer', codec='int1')} with one bit, zero points and scales included; all bytes, the "
        f"gradients of the weights among them, {measured.span('fewer', codec='fp16')} and {measured.span('fewer', codec='int1')}. "
        f"Communication time is {measured.span('comm_ratio', codec='fp16')} with fp16 (paper: about half); one bit removes "
        f"{_percent(gone)} of it and {_percent(epochs)} of the epoch (paper: 89.8 % and 84.2 %): what stays is no payload but the sum "
        f"of the gradients of the weights.{quantiser} Test accuracy is {measured.span('test', data=measured.labels('data')[0], codec='fp32')} % in "
        f"fp32 and {measured.span('test', data=measured.labels('data')[0], codec='int1')} % in one bit on {measured.labels('data')[0]}, after "
        f"{measured.flag('epochs')} epochs."
    )


def _percent(shares: list[float]) -> str:
    return span(f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f} %")
