"""Which parameter codec keeps the accuracy, and what it saves."""

from __future__ import annotations

from experiments.engine.figures import FIGURES
from experiments.engine.measured import Measured

WANTED = -0.5  # points to `exact`, at most
BASELINES = ("cagnet", "exact")
form = FIGURES["points"].form


def text(measured: Measured) -> str:
    """A sentence a codec: the least and the most that it saves, and its worst row."""
    lines = []
    for preset in measured.labels("preset"):
        if preset in BASELINES:
            continue
        points = measured.each("points", preset=preset)
        kept = sum(value >= WANTED for value in points.values())
        lines.append(
            f"- `{preset}`: {measured.span('fewer', preset=preset)} fewer bytes in all than `cagnet`; within half a point of `exact` on "
            f"{kept} of {len(points)} rows, {form(min(points.values()))} at worst."
        )
    return "\n".join(
        [
            *lines,
            "",
            f"Means of {measured.seeds} seeds. The preset `lean` keeps gradients in full (`fp32`).",
        ]
    )


def composition(measured: Measured) -> str:
    """The sentence of docs/composition.md: the headline row."""
    place = {"graph": "cora", "parts": "METIS"}
    low_rank = "lean, rank 16 in 4 bits"
    worst = {
        preset: form(min(measured.each("points", preset=preset).values()))
        for preset in measured.labels("preset")
        if preset not in BASELINES
    }
    return (
        f"On cora, METIS parts, {measured.content['cases'][0]['ranks']} ranks, `lean` sends {measured.show('all_mb', **place, preset='lean, fp32')} MB an "
        f"epoch in all, {measured.show('other_mb', **place, preset='lean, fp32')} of them parameters and agreement; with "
        f"`--parameter-codec low-rank:rank=16,bits=4` {measured.show('all_mb', **place, preset=low_rank)} MB: "
        f"{measured.show('fewer', **place, preset=low_rank)} fewer than `cagnet` in place of "
        f"{measured.show('fewer', **place, preset='lean, fp32')}, at {measured.show('points', **place, preset=low_rank)} points to `exact` "
        f"({measured.seeds} seeds, {measured.machine}). At worst, over graphs and parts, it is {worst[low_rank]} points off, four bits a value "
        f"{worst['lean, int4']}, one bit {worst['lean, int1']}: [experiments/parameter_codecs](../experiments/parameter_codecs/README.md)."
    )
