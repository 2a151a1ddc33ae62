"""Beside Sylvie Table 3."""

from __future__ import annotations

from experiments.engine.measured import Measured, span

PAPER = {  # DGL's megabytes, Sylvie's main data and zero points and scales
    "Reddit": (2791.7, 87.3, 10.7),
    "Yelp": (2348.1, 73.4, 4.5),
    "ogbn-products": (3420.6, 106.9, 26.6),
    "Amazon": (5632.6, 176.1, 11.0),
}


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    paper = [whole / (data + more) for whole, data, more in PAPER.values()]
    method, savings = "Sylvie-S", "Sylvie-S with the exact savings"
    shares = {
        data: measured.value("comm_seconds", data=data, method="DGL")
        / measured.value("seconds", data=data, method="DGL")
        for data in measured.labels("data")
    }
    return (
        f"**Beside the paper.** The payload of Sylvie-S is {measured.span('payload_fewer', method=method)} smaller than DGL's, zero "
        f"points and scales included (paper: {span(f'{min(paper):.1f}', f'{max(paper):.1f} ×')}); what crosses is "
        f"{measured.columns(method=method)} columns wide. Counting the gradients of the weights too, "
        f"{measured.span('other_mb', method=method)} MB an epoch that the paper leaves out, all bytes are "
        f"{measured.span('fewer', method=method)} fewer. With the exact savings, which are not the paper's, the payload is "
        f"{measured.span('payload_fewer', method=savings)} smaller. **What does not agree** is time: an epoch of DGL takes "
        + ", ".join(
            f"{measured.value('seconds', data=data, method='DGL') / measured.value('seconds', data=data, method=method):.1f} times "
            f"as long as Sylvie's on {data}"
            for data in shares
        )
        + f" (paper: 20 times on Reddit), since communication is {span(f'{100 * min(shares.values()):.0f}', f'{100 * max(shares.values()):.0f} %')} "
        "of it here (paper: 91 %)."
    )
