"""Beside SANCUS Figure 21."""

from __future__ import annotations

from experiments.engine.measured import Measured

NINE = [f"sancus-{kind}:{level}" for kind in "eah" for level in (1, 2, 3)]
LEAST, MOST = 0.35, 0.74  # of the communication that the paper's settings avoid


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    avoided = {key: 1 - share for key, share in measured.each("all_share", preset=NINE).items()}
    inside = sum(LEAST <= share <= MOST for share in avoided.values())
    order = [
        all(
            measured.value("all_share", preset=f"sancus-{kind}:3", graph=graph)
            <= measured.value("all_share", preset=f"sancus-{kind}:1", graph=graph)
            for graph in measured.labels("graph")
        )
        for kind in "eah"
    ]
    kinds = [f"SCS-{kind.upper()}" for kind, holds in zip("eah", order, strict=True) if holds]
    return (
        f"**Beside the paper.** The nine settings avoid {100 * min(avoided.values()):.0f} to "
        f"{100 * max(avoided.values()):.0f} % of all bytes and "
        f"{100 * (1 - max(measured.each('comm_ratio', preset=NINE).values())):.0f} to "
        f"{100 * (1 - min(measured.each('comm_ratio', preset=NINE).values())):.0f} % of the communication time "
        f"(paper: {100 * LEAST:.0f} to {100 * MOST:.0f} %); {inside} of {len(avoided)} cells lie in the paper's "
        f"range. Level 3 sends no more than level 1 for {', '.join(kinds) or 'none of the three'}. Of the "
        f"*hidden* embeddings E1 skips {measured.span('hidden_skipped', preset='sancus-e:1')}, A1 "
        f"{measured.span('hidden_skipped', preset='sancus-a:1')}, H1 {measured.span('hidden_skipped', preset='sancus-h:1')}, "
        f"H3 {measured.span('hidden_skipped', preset='sancus-h:3')}; the rest of what H avoids is X, which never drifts "
        f"and crosses once. SkipG, which lets only gradients grow old, avoids "
        f"{100 * (1 - max(measured.each('all_share', preset='skipg:1').values())):.0f} to "
        f"{100 * (1 - min(measured.each('all_share', preset='skipg:1').values())):.0f} %. Test accuracy is "
        f"{measured.span('points', preset=NINE)} points off `cagnet` in the mean of {measured.seeds} seeds, after "
        f"{measured.flag('epochs')} epochs on generated graphs: accuracy is the subject of "
        "[Figure 23](../sancus_figure23/README.md)."
    )
