"""Beside SANCUS Figure 22."""

from __future__ import annotations

from experiments.engine.measured import Measured

POLICIES = ["sancus-e:1", "sancus-a:1", "sancus-h:1"]


def text(measured: Measured) -> str:
    """What agrees and what does not, part by part."""
    variants = {
        part: [one for one in measured.labels("variant") if one.startswith(f"({part})")] for part in "abcd"
    }
    shares = {
        part: measured.span("wire_share", variant=some, preset=POLICIES) for part, some in variants.items()
    }
    eight = measured.value("comm_seconds", variant="(b) 8 ranks", preset="sancus-h:1")
    two = measured.value("comm_seconds", variant="(b) 2 ranks", preset="cagnet")
    growth = {
        preset: measured.value("comm_seconds", variant="(d) hidden 256", preset=preset)
        - measured.value("comm_seconds", variant="(d) hidden 16", preset=preset)
        for preset in ["cagnet", *POLICIES]
    }
    return (
        f"**Beside the paper.** (a) Over every link less crosses: {shares['a']} of the payload of `cagnet`. "
        f"(b) On 2, 4 and 8 ranks the share that is sent is {shares['b']}: it does not fall with the ranks, as the paper "
        f"has it, since nothing in the policies knows their number. SCS-H on 8 ranks communicates {eight / two:.1f} times "
        f"as long as CAGNET on 2 (paper: about as long). (c) From 2 to 5 layers {shares['c']} is sent. (d) From hidden "
        f"size 16 to 256 the communication of `cagnet` grows by {growth['cagnet']:.2f} s, that of E1, A1 and H1 by "
        + ", ".join(f"{growth[preset]:.2f}" for preset in POLICIES)
        + " s. Gradients are never skipped, so that a policy cannot save more than the forward part of what is added. "
        f"The hidden embeddings that H1 skips: {measured.span('hidden_skipped', preset='sancus-h:1')}. One seed, "
        f"{measured.flag('epochs')} epochs a case, no dropout."
    )
