"""Beside SANCUS Figure 24."""

from __future__ import annotations

from itertools import pairwise

from experiments.engine.measured import Measured

GAPS = ["sancus-h:1", "sancus-h:2", "sancus-h:3"]


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    skipped = {preset: measured.show("hidden_skipped", preset=preset) for preset in measured.labels("preset")}
    irregular = {preset: len(_distances(measured, preset)) for preset in measured.labels("preset")}
    gaps = [measured.value("hidden_skipped", preset=preset) for preset in GAPS]
    return (
        "**Beside the paper.** Distances between two sends of an owner's hidden embeddings take "
        f"{irregular['sancus-e:1']} value with E1 (paper: regular), {irregular['sancus-a:1']}, {irregular['sancus-a:2']} and "
        f"{irregular['sancus-a:3']} with A1 to A3, {irregular['sancus-h:1']}, {irregular['sancus-h:2']} and "
        f"{irregular['sancus-h:3']} with H1 to H3 (paper: irregular, SCS-H most so). Of the hidden embeddings E1 skips "
        f"{skipped['sancus-e:1']}, A1 {skipped['sancus-a:1']}, H1 {skipped['sancus-h:1']} (paper: these three skip the least "
        f"of their kind); a larger gap skips {'more' if gaps == sorted(gaps) else 'not always more'}: "
        f"{measured.span('hidden_skipped', preset=GAPS)}. The column of all embeddings counts X too, which has no drift: "
        "H sends it once and again only when its age reaches the cap."
    )


def _distances(measured: Measured, preset: str) -> set[int]:
    """Epochs between two sends of a hidden stream, over all owners."""
    distances: set[int] = set()
    for case in measured.cases(preset=preset):
        for stream, answers in case["sent"].items():
            if stream.startswith("layer 1, forward"):
                epochs = [epoch for epoch, answer in enumerate(answers) if answer == "1"]
                distances |= {later - sooner for sooner, later in pairwise(epochs)}
    return distances
