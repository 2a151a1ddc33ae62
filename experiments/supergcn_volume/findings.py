"""Beside SuperGCN's table of volumes."""

from __future__ import annotations

from experiments.engine.measured import Measured, listing


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    hybrid, quantised = {}, {}
    slower = []
    for data in measured.labels("data"):
        hybrid[data] = 1 / measured.value("wire_share", data=data, method="pre-post")
        quantised[data] = hybrid_bytes(measured, data) / measured.value(
            "wire_mb", data=data, method="pre-post, int2"
        )
        fast = measured.value("seconds", data=data, method="pre-post")
        if measured.value("seconds", data=data, method="pre-post, int2") > fast:
            slower.append(data)
    return (
        "**Beside the paper.** Pre and post have the same size. Pre-post takes "
        + ", ".join(f"{times:.1f} times fewer bytes on {data}" for data, times in hybrid.items())
        + " (paper: 1.5). Int2 takes "
        + ", ".join(f"{times:.1f}" for times in quantised.values())
        + f" times fewer again (paper: 15): what crosses is {measured.columns(method='pre-post, int2')} columns wide, and a row "
        "of two-bit levels carries 4 bytes of zero point and scale. Counting the gradients of the weights, pre-post with int2 "
        f"takes {measured.span('all_share', method='pre-post, int2')} of all bytes of post. Communication time is "
        f"{measured.span('comm_ratio', method='pre-post')} of post's with pre-post and "
        f"{measured.span('comm_ratio', method='pre-post, int2')} with int2 (paper: 67 % and 5 %): eight ranks share two cores, so "
        "most of what is left is waiting for a rank that computes, and the sum of weight gradients. An epoch with int2 is "
        + (
            f"*slower* than with pre-post alone on {listing(slower)}"
            if slower
            else "nowhere slower than with pre-post alone"
        )
        + f" ({measured.span('speedup', method='pre-post, int2')} the speed of post, pre-post "
        f"{measured.span('speedup', method='pre-post')})."
    )


def hybrid_bytes(measured: Measured, data: str) -> float:
    """Megabytes of pre-post in full precision."""
    return measured.value("wire_mb", data=data, method="pre-post")
