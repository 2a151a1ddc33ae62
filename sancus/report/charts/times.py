"""Where the time of an epoch goes: a bar a run (SANCUS Figures 21-22), and one run over its epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sancus.report.chart import Chart, Key, colour, label, thin, thinned_text, thinning
from sancus.report.groups import RunGroup, an_epoch
from sancus.report.run_reader import RunFiles, number
from sancus.report.seconds import COMPUTE, Split, split_of
from sancus.report.units import seconds_text, share_text

MOST_BARS = 120
COLOURS = {
    COMPUTE: "s6",
    "aggregation": "s0",
    "dense": "s2",
    "codec": "s4",
    "communication": "s1",
    "waiting": "s7",
    "agreement": "s3",
    "other": "s5",
}
HIDDEN = "hidden communication"


def time_bars(groups: Sequence[RunGroup]) -> list[Chart]:
    """One bar a group, whose parts add up to the epoch's seconds; what was hidden stands below."""
    splits = [(group, split) for group in groups if (split := _split(group)) is not None]
    if not splits:
        return []
    names = [label(group.label, 32) for group, _ in splits][::-1]
    parts = _parts_of([split for _, split in splits])
    traces = [
        _bar(part, names, [split.get(part, 0.0) for _, split in splits][::-1], COLOURS[part], "exposed")
        for part in parts
    ]
    behind = [group.mean(an_epoch("hidden_seconds")) or 0.0 for group, _ in splits]
    legend = [Key(part, COLOURS[part], "box", (place,)) for place, part in enumerate(parts)]
    if any(behind):
        traces.append(_bar(HIDDEN, names, behind[::-1], "s1", "hidden"))
        legend.append(Key(f"{HIDDEN} (behind other work)", "s1", "hatch", (len(parts),)))
    shares = [
        _share(group.label, split, hidden, len(splits) > 1)
        for (group, split), hidden in zip(splits, behind, strict=True)
    ]
    more = f"; and {len(shares) - 4} more" if len(shares) > 4 else ""
    return [
        Chart(
            "Time of an epoch",
            "Mean seconds of a training epoch, by what they were spent on. Waiting is what a rank spent in "
            "messages above the rank that spent least; dense is the rest of the model's work.",
            "; ".join(shares[:4]) + more + ".",
            {"run": [group.label for group, _ in splits]}
            | {part: [split.get(part) for _, split in splits] for part in parts}
            | {HIDDEN: behind},
            traces,
            {
                "barmode": "stack",
                "bargap": 0.35,
                "xaxis": {"title": {"text": "seconds an epoch"}, "rangemode": "tozero"},
                "yaxis": {"automargin": True, "showgrid": False, "type": "category"},
                "hovermode": "closest",
            },
            legend,
            [
                ["", *parts, HIDDEN],
                *(
                    [group.label, *(_cell(split.get(part)) for part in parts), seconds_text(hidden)]
                    for (group, split), hidden in zip(splits, behind, strict=True)
                ),
            ],
            height=110 + 46 * len(splits),
            wide=True,
        )
    ]


def epoch_times(files: RunFiles) -> list[Chart]:
    """Stacked bars over the epochs of one run."""
    pairs = [(epoch, split) for epoch in files.epochs if (split := _split_of_epoch(epoch)) is not None]
    if not pairs:
        return []
    size = thinning(len(pairs), MOST_BARS)
    epochs: list[float | None] = [float(epoch["epoch"]) for epoch, _ in pairs]
    splits = [split for _, split in pairs]
    parts = _parts_of(splits)
    traces = [
        {
            "type": "bar",
            "name": part,
            "x": thin(epochs, size),
            "y": thin([split.get(part) for split in splits], size),
            "marker": {"color": colour(COLOURS[part]), "line": {"width": 0}},
            "hovertemplate": f"epoch %{{x:.0f}}: %{{y:.3~s}}s {part}<extra></extra>",
        }
        for part in parts
    ]
    total = {part: sum(split.get(part, 0.0) for split in splits) for part in parts}
    whole = sum(total.values())
    most = sorted(total, key=lambda part: total[part], reverse=True)[:3]
    words = [f"{part} {share_text(total[part] / whole)}" for part in most] if whole else []
    mean = {part: seconds_text(value / len(splits)) for part, value in total.items()}
    return [
        Chart(
            "Time, epoch by epoch",
            "Seconds of every training epoch, by what they were spent on; mean of the ranks.",
            f"Most of it: {', '.join(words) or 'nothing'}.{thinned_text(size)}",
            {"epoch": epochs} | {part: [split.get(part) for split in splits] for part in parts},
            traces,
            {"barmode": "stack", "bargap": 0.0, "xaxis": {"title": {"text": "epoch"}}},
            [Key(part, COLOURS[part], "box", (place,)) for place, part in enumerate(parts)],
            [["", "mean", "in all"], *([p, mean[p], seconds_text(total[p])] for p in parts)],
        )
    ]


def _parts_of(splits: Sequence[Split]) -> list[str]:
    """The parts that took any time, in the order in which they are stacked; these two are always shown."""
    always = ("communication", "waiting")
    return [part for part in COLOURS if part in always or any(split.get(part) for split in splits)]


def _split_of_epoch(epoch: dict[str, Any]) -> Split | None:
    return split_of(lambda name: number(epoch.get(name)))


def _split(group: RunGroup) -> Split | None:
    return split_of(lambda name: group.mean(an_epoch(name)))


def _cell(seconds: float | None) -> str:
    return "–" if seconds is None else seconds_text(seconds)


def _bar(part: str, names: list[str], values: list[float], shade: str, where: str) -> dict[str, Any]:
    hatch = {"shape": "/", "bgcolor": colour("card"), "fgcolor": colour(shade), "solidity": 0.5, "size": 7}
    marker: dict[str, Any] = {"color": colour(shade), "line": {"width": 0}}
    return {
        "type": "bar",
        "orientation": "h",
        "name": part,
        "y": names,
        "x": values,
        "offsetgroup": where,
        "marker": marker | ({"pattern": hatch} if where == "hidden" else {}),
        "hovertemplate": f"<b>%{{y}}</b><br>{part} %{{x:.3~s}}s<extra></extra>",
    }


def _share(name: str, split: Split, hidden: float, with_name: bool) -> str:
    total = sum(split.values())
    exchange = split["communication"] + split["waiting"]
    part = share_text(exchange / total) if total else "nothing"
    who = f"{name}: " if with_name else ""
    text = f"{who}{seconds_text(total)} an epoch, of which {part} communication and waiting"
    if split.get("codec"):
        text += f", {share_text(split['codec'] / total)} codec"
    return f"{text}, {seconds_text(hidden)} more hidden behind other work" if hidden else text
