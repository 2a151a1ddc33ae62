"""Where the time of an epoch goes: a bar a run (SANCUS Figures 21-22), and one run over its epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sancus.report.chart import Chart, Key, colour, label, thin, thinned_text, thinning
from sancus.report.groups import RunGroup, an_epoch
from sancus.report.run_reader import RunFiles, number
from sancus.report.units import seconds_text, share_text

MOST_BARS = 120
PARTS = {"compute": "s0", "communication": "s1", "waiting": "s7"}  # name -> colour
HIDDEN = "hidden communication"
Split = dict[str, float]


def time_bars(groups: Sequence[RunGroup]) -> list[Chart]:
    """One bar a group: compute, communication and waiting add up; what was hidden stands below."""
    splits = [(group, split) for group in groups if (split := _split(group)) is not None]
    if not splits:
        return []
    names = [label(group.label, 32) for group, _ in splits][::-1]
    traces = [
        _bar(part, names, [split[part] for _, split in splits][::-1], PARTS[part], "exposed")
        for part in PARTS
    ]
    hidden = any(split[HIDDEN] for _, split in splits)
    legend = [Key(part, PARTS[part], "box", (place,)) for place, part in enumerate(PARTS)]
    if hidden:
        traces.append(_bar(HIDDEN, names, [split[HIDDEN] for _, split in splits][::-1], "s1", "hidden"))
        legend.append(Key(f"{HIDDEN} (behind compute)", "s1", "hatch", (len(PARTS),)))
    parts = (*PARTS, HIDDEN)
    shares = [_share(group.label, split, len(splits) > 1) for group, split in splits]
    more = f"; and {len(shares) - 4} more" if len(shares) > 4 else ""
    return [
        Chart(
            "Time of an epoch",
            "Mean seconds of a training epoch; waiting is what is above the rank that communicated least.",
            "; ".join(shares[:4]) + more + ".",
            {"run": [group.label for group, _ in splits]}
            | {part: [split[part] for _, split in splits] for part in parts},
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
                ["", *parts],
                *([group.label, *(seconds_text(split[part]) for part in parts)] for group, split in splits),
            ],
            height=110 + 46 * len(splits),
            wide=True,
        )
    ]


def epoch_times(files: RunFiles) -> list[Chart]:
    """Stacked bars over the epochs of one run."""
    records = [epoch for epoch in files.epochs if number(epoch.get("comm_seconds")) is not None]
    records = [epoch for epoch in records if number(epoch.get("compute_seconds")) is not None]
    if not records:
        return []
    size = thinning(len(records), MOST_BARS)
    epochs: list[float | None] = [float(epoch["epoch"]) for epoch in records]
    splits = [_parts(epoch) for epoch in records]
    traces = []
    for part, shade in PARTS.items():
        values = thin([split[part] for split in splits], size)
        traces.append(
            {
                "type": "bar",
                "name": part,
                "x": thin(epochs, size),
                "y": values,
                "marker": {"color": colour(shade), "line": {"width": 0}},
                "hovertemplate": f"epoch %{{x:.0f}}: %{{y:.3~s}}s {part}<extra></extra>",
            }
        )
    total = {part: sum(split[part] for split in splits) for part in PARTS}
    whole = sum(total.values())
    share = f", which is {share_text(total['communication'] / whole)} of the time" if whole else ""
    mean = {part: seconds_text(value / len(splits)) for part, value in total.items()}
    return [
        Chart(
            "Time, epoch by epoch",
            "Seconds of every training epoch, mean of the ranks.",
            f"Mean {mean['compute']} compute, {mean['waiting']} waiting and {mean['communication']} "
            f"communication{share}.{thinned_text(size)}",
            {"epoch": epochs} | {part: [split[part] for split in splits] for part in PARTS},
            traces,
            {"barmode": "stack", "bargap": 0.0, "xaxis": {"title": {"text": "epoch"}}},
            [Key(part, shade, "box", (place,)) for place, (part, shade) in enumerate(PARTS.items())],
            [["", "mean", "in all"], *([p, mean[p], seconds_text(total[p])] for p in PARTS)],
        )
    ]


def _parts(epoch: dict[str, Any]) -> Split:
    waiting = number(epoch.get("waiting_seconds")) or 0.0
    comm = number(epoch.get("comm_seconds")) or 0.0
    return {
        "compute": number(epoch.get("compute_seconds")) or 0.0,
        "communication": max(0.0, comm - waiting),
        "waiting": waiting,
    }


def _split(group: RunGroup) -> Split | None:
    compute, comm = group.mean(an_epoch("compute_seconds")), group.mean(an_epoch("comm_seconds"))
    if compute is None or comm is None:
        return None
    waiting = group.mean(an_epoch("waiting_seconds")) or 0.0
    return {
        "compute": compute,
        "communication": max(0.0, comm - waiting),
        "waiting": waiting,
        HIDDEN: group.mean(an_epoch("hidden_seconds")) or 0.0,
    }


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


def _share(name: str, split: Split, with_name: bool) -> str:
    total = split["compute"] + split["communication"] + split["waiting"]
    exchange = split["communication"] + split["waiting"]
    part = share_text(exchange / total) if total else "nothing"
    who = f"{name}: " if with_name else ""
    text = f"{who}{seconds_text(total)} an epoch, of which {part} communication and waiting"
    return f"{text}, {seconds_text(split[HIDDEN])} more hidden behind compute" if split[HIDDEN] else text
