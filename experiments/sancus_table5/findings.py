"""Beside SANCUS Table 5."""

from __future__ import annotations

from statistics import fmean

from experiments.engine.figures import FIGURES
from experiments.engine.measured import Measured
from experiments.engine.tables import render

PAPER = {  # communication as a share of CAGNET's on the paper's three machines
    "sancus-a:1": (0.687, 0.717, 0.703),
    "sancus-e:1": (0.697, 0.714, 0.708),
    "sancus-h:1": (0.675, 0.698, 0.692),
}
POINTS = 0.05  # how far a share may be off
FEATURES, CLASSES = 602, 41  # Reddit's


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    form = FIGURES["comm_ratio"].form
    rows = [
        [
            "setting",
            "paper: communication",
            "bytes here",
            "time here",
            "hidden embeddings skipped",
            "within 5 points",
        ]
    ]
    for preset, shares in PAPER.items():
        share = fmean(measured.each("all_share", preset=preset).values())
        off = abs(share - fmean(shares))
        rows.append(
            [
                f"`{preset}`",
                f"{form(min(shares))} to {form(max(shares))}",
                measured.span("all_share", preset=preset),
                measured.span("comm_ratio", preset=preset),
                measured.span("hidden_skipped", preset=preset),
                "yes" if off <= POINTS else f"no: {100 * off:.0f} points",
            ]
        )
    always = (FEATURES + FEATURES + CLASSES) / (3 * FEATURES + CLASSES)
    return "\n\n".join(
        [
            "**Beside the paper.** Shares are of CAGNET; bytes are all bytes, in the mean over the links within 5 points "
            "of the mean of the paper's three machines or not.",
            render(rows),
            f"Where X is never sent again, while every hidden embedding and every gradient is, {form(always)} of the "
            f"payload is left, with hidden = F = {FEATURES}: that is the paper's share of all three. E1 and A1 send "
            "everything in half of the epochs, which comes to the same. H1 sends X once too, and avoids what hidden "
            f"embeddings it skips on top: {measured.span('hidden_skipped', preset='sancus-h:1')} of them here. How many "
            "that are depends on the size of the embeddings, against which the paper's gap is absolute, and on how long "
            "one trains: the longer, the more.",
            "Compute stays what it is: it is "
            f"{measured.span('compute_ratio', preset='cagnet')} of the communication of CAGNET, and "
            f"{measured.span('compute_ratio', preset=list(PAPER))} with a policy (paper: 0.093 to 0.437). Time follows "
            "bytes but for what is waited for: four ranks share two cores here. The kernel's count of the links is "
            f"{measured.span('link_ratio')} of ours.",
        ]
    )
