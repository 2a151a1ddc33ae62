"""The broadcast raster: who sent when, and how old what the others used was (SANCUS Figure 24)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sancus.report.ages import (
    DIRECTIONS,
    LATER,
    NO_AGE,
    SEND,
    SKIP,
    UNUSED,
    Decisions,
    age_counts,
    ages_of,
    used_streams,
)
from sancus.report.chart import Chart, Key, colour
from sancus.report.groups import RunGroup
from sancus.report.units import share_text

NAMES = {SEND: "SEND", LATER: "SEND in the background", SKIP: "SKIP", UNUSED: "unused"}
LEAST_ROW, MOST_ROW, DRAWING = 7, 18, 420  # pixels


def raster(group: RunGroup) -> list[Chart]:
    """Epochs to the right; a band a layer and direction, in it a row an owner."""
    decisions = group.first.decisions
    streams = used_streams(decisions) if decisions is not None else []
    if decisions is None or not streams:
        return []
    ages = ages_of(decisions)
    epochs, _, _, owners = decisions.shape
    rows = [(layer, side, owner) for layer, side in streams for owner in range(owners)]
    answers = np.stack([decisions[:, layer, side, owner] for layer, side, owner in rows])
    row_ages = np.stack([ages[:, layer, side, owner] for layer, side, owner in rows])
    names = [f"layer {layer} {DIRECTIONS[side]}, owner {owner}" for layer, side, owner in rows]
    oldest = max(1, int(row_ages.max(initial=0)))
    traces, legend = _traces(answers, row_ages, names, oldest)
    sends, skips = int(((answers == SEND) | (answers == LATER)).sum()), int((answers == SKIP).sum())
    skip_text = share_text(skips / (sends + skips))
    text = f"{sends:,} sends and {skips:,} skips in {epochs:,} epochs: {skip_text} skipped."
    if (row_ages > 0).any():
        text += f" The oldest history used was {oldest} epoch{'s' if oldest > 1 else ''} old."
    pitch = max(LEAST_ROW, min(MOST_ROW, DRAWING // len(rows)))
    return [
        Chart(
            "Who broadcast when",
            "Every cell is one owner's decision in one epoch; within a band, owners from 0 (top) down.",
            text + group.seeds_text,
            _columns(decisions, ages),
            traces,
            _layout(streams, owners, names),
            legend,
            [["", "sends", "skips", "mean age", "oldest"], *_table(decisions, ages, streams)],
            height=90 + pitch * len(rows),
            wide=True,
        )
    ]


def age_histogram(group: RunGroup) -> list[Chart]:
    """How old what was used was, as a share of all uses."""
    decisions = group.first.decisions
    if decisions is None or not used_streams(decisions):
        return []
    counts = {name: age_counts(decisions, side) for side, name in enumerate(DIRECTIONS)}
    ages = sorted({age for uses in counts.values() for age in uses})
    names = ["absent" if age == NO_AGE else str(age) for age in ages]
    traces: list[dict[str, Any]] = []
    words = []
    for side, (name, uses) in enumerate(counts.items()):
        total = sum(uses.values())
        if not total:
            continue
        shares = [100 * uses.get(age, 0) / total for age in ages]
        fresh = uses.get(0, 0) / total
        words.append(f"{name}, {share_text(fresh)} of all uses were fresh")
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": names,
                "y": shares,
                "marker": {"color": colour(f"s{side}"), "line": {"width": 0}},
                "hovertemplate": f"{name}, age %{{x}}: %{{y:.2f}} %<extra></extra>",
            }
        )
    shades = {"forward": "s0", "backward": "s1"}
    return [
        Chart(
            "Ages",
            "Age in epochs of the rows that were computed with, as a share of all uses; 0 is fresh.",
            f"{'; '.join(words).capitalize()}.{group.seeds_text}",
            {"age": names} | {name: [uses.get(age, 0) for age in ages] for name, uses in counts.items()},
            traces,
            {
                "barmode": "group",
                "xaxis": {"title": {"text": "age, epochs"}, "type": "category"},
                "yaxis": {"title": {"text": "% of uses"}, "rangemode": "tozero"},
                "hovermode": "closest",
            },
            [Key(trace["name"], shades[trace["name"]], "box", (at,)) for at, trace in enumerate(traces)],
            [
                ["age", *counts],
                *(
                    [n, *(f"{f.get(a, 0):,}" for f in counts.values())]
                    for a, n in zip(ages, names, strict=True)
                ),
            ],
        )
    ]


def _traces(answers: Any, ages: Any, names: list[str], oldest: int) -> tuple[list[dict[str, Any]], list[Key]]:
    """One heatmap an answer; SKIP is shaded by age. Cells of other answers are gaps."""
    ramp = [[0.0, colour("age-low")], [1.0, colour("age-high")]]
    kinds: list[tuple[Any, Any, str, list[list[Any]], str, Key]] = []
    for answer, shade in ((SEND, "send"), (LATER, "later")):
        flat = [[0.0, colour(shade)], [1.0, colour(shade)]]
        key = Key(NAMES[answer], shade)
        age = "" if answer == SEND else ", used the epoch before"
        kinds.append((answers == answer, answers, NAMES[answer] + age, flat, "", key))
    from_history = (answers == SKIP) & (ages != NO_AGE)
    key = Key(f"SKIP, age 1 to {oldest}" if oldest > 1 else "SKIP, age 1", "age", "ramp")
    kinds.append((from_history, ages, "SKIP, age", ramp, " %{z}", key))
    absent = (answers == SKIP) & (ages == NO_AGE)
    flat = [[0.0, colour("absent")], [1.0, colour("absent")]]
    kinds.append((absent, answers, "SKIP, counts as absent", flat, "", Key("SKIP, absent", "absent")))
    traces: list[dict[str, Any]] = []
    legend = []
    for mask, values, name, scale, suffix, key in kinds:
        if not mask.any():
            continue
        cells = values.astype(object)
        cells[~mask] = None
        span = {"zmin": 1, "zmax": oldest} if suffix else {"zmin": 0, "zmax": 2}
        legend.append(Key(key.label, key.colour, key.swatch, (len(traces),)))
        traces.append(
            {
                "type": "heatmap",
                "name": name,
                "y": names,
                "z": cells.tolist(),
                **span,
                "colorscale": scale,
                "showscale": False,
                "hoverongaps": False,
                "xgap": 0,
                "ygap": 1 if len(names) <= 64 else 0,
                "hovertemplate": f"epoch %{{x}}, %{{y}}<br><b>{name}{suffix}</b><extra></extra>",
            }
        )
    return traces, legend


def _layout(streams: list[tuple[int, int]], owners: int, names: list[str]) -> dict[str, Any]:
    """A tick in the middle of every band, a line between bands."""
    middles = [names[place * owners + (owners - 1) // 2] for place in range(len(streams))]
    lines = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": place * owners - 0.5,
            "y1": place * owners - 0.5,
            "line": {"color": colour("ink"), "width": 1},
        }
        for place in range(1, len(streams))
    ]
    ticks = [f"layer {layer}<br>{DIRECTIONS[side]}" for layer, side in streams]
    return {
        "xaxis": {"title": {"text": "epoch"}, "showgrid": False, "tickformat": "d"},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "tickvals": middles,
            "ticktext": ticks,
            "showgrid": False,
        },
        "hovermode": "closest",
        "shapes": lines,
    }


def _columns(decisions: Decisions, ages: Any) -> dict[str, list[Any]]:
    places: Any = np.argwhere(decisions != UNUSED)
    epoch, layer, side, owner = (places[:, column] for column in range(4))
    answers, uses = decisions[decisions != UNUSED], ages[decisions != UNUSED]
    return {
        "epoch": epoch.tolist(),
        "layer": layer.tolist(),
        "direction": [DIRECTIONS[place] for place in side.tolist()],
        "owner": owner.tolist(),
        "decision": [NAMES[answer] for answer in answers.tolist()],
        "age": [None if age == NO_AGE else age for age in uses.tolist()],
    }


def _table(decisions: Decisions, ages: Any, streams: list[tuple[int, int]]) -> list[list[str]]:
    rows = []
    for layer, side in streams:
        answers, stream_ages = decisions[:, layer, side], ages[:, layer, side]
        use_ages = stream_ages[(answers != UNUSED) & (stream_ages != NO_AGE)]
        sends, skips = int((answers > SKIP).sum()), int((answers == SKIP).sum())
        mean = f"{use_ages.mean():.2f}" if use_ages.size else "–"
        oldest = str(int(use_ages.max())) if use_ages.size else "–"
        rows.append([f"layer {layer} {DIRECTIONS[side]}", f"{sends:,}", f"{skips:,}", mean, oldest])
    return rows
