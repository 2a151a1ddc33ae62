"""The stages of a pipeline: what each did when (GNNPipe Figure 3), how much they waited, what was stale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sancus.report.chart import Chart, Key, colour, thin, thinned_text, thinning
from sancus.report.charts.stream_lines import limit_line
from sancus.report.groups import RunGroup
from sancus.report.run_reader import items, number, numbers, section
from sancus.report.units import count_text, seconds_text, share_text

DOINGS = ("wait", "work", "send")  # as `run.json` numbers them
KINDS = {  # (doing, backward) → name and colour
    ("work", False): ("forward", "s0"),
    ("work", True): ("backward", "s2"),
    ("send", None): ("send", "s1"),
    ("wait", None): ("wait", "s7"),
}
SHARES = {"bubble_share": ("waiting", "s7"), "stale_share": ("stale edges", "s3")}


@dataclass(frozen=True)
class Bar:
    """What one rank did for some time."""

    rank: int
    kind: tuple[str, bool | None]
    chunk: int
    begun: float
    ended: float


def gantt(group: RunGroup) -> list[Chart]:
    """A line a rank, along the time of the last epoch."""
    facts = section(group.first.run, "schedule")
    ranks, width = items(facts.get("timeline")), number(facts.get("ranks_a_stage")) or 1
    bars = [bar for rank, plain in enumerate(ranks) for bar in _bars(rank, plain)]
    if not bars:
        return []
    names = [_name(rank, int(width)) for rank in range(len(ranks))]
    traces = [
        _trace(name, shade, [bar for bar in bars if bar.kind == kind], names)
        for kind, (name, shade) in KINDS.items()
    ]
    spent = {kind: [_seconds(bars, rank, kind) for rank in range(len(ranks))] for kind in KINDS}
    ends = [number(plain.get("seconds")) or 0.0 for plain in ranks]
    return [
        Chart(
            "Stages over time",
            "What every rank did in the last epoch: chunks forward, then back in the reverse order.",
            f"{_words(group)}{group.seeds_text}",
            {
                "rank": [bar.rank for bar in bars],
                "doing": [KINDS[bar.kind][0] for bar in bars],
                "chunk": [bar.chunk for bar in bars],
                "begun": [bar.begun for bar in bars],
                "ended": [bar.ended for bar in bars],
            },
            traces,
            {
                "barmode": "overlay",
                "bargap": 0.25,
                "xaxis": {"title": {"text": "seconds since the epoch began"}, "rangemode": "tozero"},
                "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
                "hovermode": "closest",
            },
            [Key(name, shade, "box", (at,)) for at, (name, shade) in enumerate(KINDS.values())],
            [
                ["", *(name for name, _ in KINDS.values()), "the epoch"],
                *(
                    [
                        names[rank],
                        *(seconds_text(spent[kind][rank]) for kind in KINDS),
                        seconds_text(ends[rank]),
                    ]
                    for rank in range(len(ranks))
                ),
            ],
            height=110 + 34 * len(ranks),
            wide=True,
        )
    ]


def waiting_and_staleness(group: RunGroup) -> list[Chart]:
    """Over the epochs: the share of their time in which stages waited, and of edges that were stale."""
    lines = [line for line in group.first.epochs if number(line.get("stale_share")) is not None]
    if not lines:
        return []
    size = thinning(len(lines))
    epochs = [number(line.get("epoch")) for line in lines]
    values = {key: [number(line.get(key)) for line in lines] for key in SHARES}
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": SHARES[key][0],
            "x": thin(epochs, size),
            "y": [None if value is None else 100 * value for value in thin(values[key], size)],
            "line": {"color": colour(SHARES[key][1]), "width": 2},
            "hovertemplate": f"epoch %{{x:.0f}}: %{{y:.1f}} % {SHARES[key][0]}<extra></extra>",
        }
        for key in SHARES
    ]
    formula = number(section(group.first.run, "schedule").get("bubble_formula"))
    legend = [Key(*SHARES[key], "line", (at,)) for at, key in enumerate(SHARES)]
    if formula is not None:
        legend.append(Key(f"(S − 1) / (K + S − 1), {share_text(formula)}", "ink", "dash"))
    return [
        Chart(
            "Waiting and stale edges",
            "Share of an epoch in which stages waited, mean of the ranks, and of the edges whose row was of "
            "a chunk yet to come. The dashed line is the bubble where all stages take equally long.",
            f"{_words(group)}{group.seeds_text}{thinned_text(size)}",
            {"epoch": epochs, **values},
            traces,
            {
                "xaxis": {"title": {"text": "epoch"}},
                "yaxis": {"title": {"text": "%"}, "rangemode": "tozero"},
                "shapes": [] if formula is None else [limit_line(100 * formula)],
            },
            legend,
        )
    ]


def _words(group: RunGroup) -> str:
    """Both shares, and what the formula says of the first."""
    run = group.first.run
    facts, means = section(run, "schedule"), section(run, "schedule", "per_epoch")
    stages, chunks, formula = (number(facts.get(key)) for key in ("stages", "chunks", "bubble_formula"))
    bubble, stale = (number(means.get(key)) for key in SHARES)
    words = []
    if stages is not None and chunks is not None:
        words.append(f"{count_text(chunks)} chunks through {count_text(stages)} stages")
    if bubble is not None:
        beside = "" if formula is None else f"; (S − 1) / (K + S − 1) is {share_text(formula)}"
        words.append(f"stages waited {share_text(bubble)} of an epoch{beside}")
    if stale is not None:
        words.append(f"{share_text(stale)} of the edges were stale")
    text = "; ".join(words)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _bars(rank: int, plain: dict[str, Any]) -> list[Bar]:
    columns = [numbers(plain.get(key)) for key in ("doing", "backward", "chunk", "begun", "ended")]
    bars = []
    for doing, backward, chunk, begun, ended in zip(*columns, strict=False):
        if doing not in range(len(DOINGS)) or None in (backward, chunk, begun, ended):
            continue
        what = DOINGS[int(doing)]
        kind = (what, bool(backward) if what == "work" else None)
        bars.append(Bar(rank, kind, int(chunk or 0), begun or 0.0, ended or 0.0))
    return bars


def _trace(name: str, shade: str, bars: Sequence[Bar], names: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [names[bar.rank] for bar in bars],
        "base": [bar.begun for bar in bars],
        "x": [bar.ended - bar.begun for bar in bars],
        "customdata": [bar.chunk for bar in bars],
        "marker": {"color": colour(shade), "line": {"width": 0}},
        "hovertemplate": f"%{{y}}: {name}, chunk %{{customdata}}, %{{x:.3~s}}s<extra></extra>",
    }


def _seconds(bars: Sequence[Bar], rank: int, kind: tuple[str, bool | None]) -> float:
    return sum(bar.ended - bar.begun for bar in bars if bar.rank == rank and bar.kind == kind)


def _name(rank: int, width: int) -> str:
    """`stage 1`, or `stage 1, place 0` where several ranks share one."""
    return f"stage {rank // width}" + (f", place {rank % width}" if width > 1 else "")
