"""What each rank keeps and owns: cache memory, predicted and measured (SANCUS Table 6); the partition."""

from __future__ import annotations

from sancus.report.chart import Chart, Key, colour
from sancus.report.groups import RunGroup
from sancus.report.run_reader import number, numbers, section
from sancus.report.units import bytes_text, count_text, share_text

CACHE = {
    "predicted_bytes": ("history, predicted", "s5"),
    "history_bytes": ("history, measured", "s0"),
    "drift_bytes": ("copies for drift", "s1"),
    "residual_bytes": ("copies for error feedback", "s3"),
}
LOADS = {
    "rows": ("rows", "s0"),
    "nonzeros": ("nonzeros", "s1"),
    "train": ("training nodes", "s2"),
    "halo_received": ("halo rows received", "s3"),
}


def cache_memory(group: RunGroup) -> list[Chart]:
    """Histories a rank, beside what was predicted before the run, and other copies."""
    cache = section(group.first.run, "cache")
    sizes = {key: numbers(cache.get(key)) for key in CACHE}
    bars = {key: values for key, values in sizes.items() if any(values)}
    if not bars:
        return []
    ranks = max(map(len, bars.values()))
    names = [f"rank {rank}" for rank in range(ranks)]
    traces = [
        {
            "type": "bar",
            "name": CACHE[key][0],
            "x": names,
            "y": values,
            "marker": {"color": colour(CACHE[key][1]), "line": {"width": 0}},
            "hovertemplate": f"%{{x}}: %{{y:.4~s}}B {CACHE[key][0]}<extra></extra>",
        }
        for key, values in bars.items()
    ]
    history = [value or 0.0 for value in sizes["history_bytes"]]
    predicted = sizes["predicted_bytes"]
    text = f"At most {bytes_text(max(history, default=0))} of histories on a rank"
    if len(predicted) == len(history) and all(value is not None for value in predicted):
        off = max(abs(a - (b or 0.0)) for a, b in zip(history, predicted, strict=True))
        text += (
            ", exactly as predicted" if off == 0 else f", at most {bytes_text(off)} off what was predicted"
        )
    shares = [value for value in numbers(cache.get("share_of_peak")) if value is not None]
    text += f"; that is at most {share_text(max(shares))} of its peak memory" if shares else ""
    return [
        Chart(
            "Cache memory a rank",
            "Memory that histories take on every rank, predicted from the plan and measured at the end.",
            f"{text}.{group.seeds_text}",
            {"rank": list(range(ranks))} | {key: _pad(values, ranks) for key, values in sizes.items()},
            traces,
            {
                "barmode": "group",
                "xaxis": {"type": "category"},
                "yaxis": {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"},
                "hovermode": "closest",
            },
            [Key(*CACHE[key], "box", (at,)) for at, key in enumerate(bars)],
            [
                ["", *(CACHE[key][0] for key in bars)],
                *(
                    [names[rank], *("–" if v is None else bytes_text(v) for v in _at(bars, rank))]
                    for rank in range(ranks)
                ),
            ],
        )
    ]


def partition_quality(group: RunGroup) -> list[Chart]:
    """The load of every rank over the mean of all: 1 is perfect balance."""
    facts = section(group.first.run, "partition")
    numbers_by_key = {key: numbers(facts.get(key)) for key in LOADS}
    loads = {key: [value or 0.0 for value in values] for key, values in numbers_by_key.items() if any(values)}
    if not loads:
        return []
    ranks = max(map(len, loads.values()))
    names = [f"rank {rank}" for rank in range(ranks)]
    traces = []
    for key, values in loads.items():
        mean = sum(values) / len(values)
        name, shade = LOADS[key]
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": names,
                "y": [value / mean for value in values],
                "customdata": values,
                "marker": {"color": colour(shade), "line": {"width": 0}},
                "hovertemplate": f"%{{x}}: %{{customdata:,}} {name}, %{{y:.2f}} of the mean<extra></extra>",
            }
        )
    cut_share, plans = number(facts.get("edge_cut_share")), section(facts, "payload_rows")
    words = [f"{share_text(cut_share)} of the edges are cut"] if cut_share is not None else []
    words += [
        f"{plan} sends {count_text(rows)} rows" for plan, rows in plans.items() if number(rows) is not None
    ]
    worst = {key: max(values) * len(values) / sum(values) for key, values in loads.items()}
    words.append("largest over mean: " + ", ".join(f"{LOADS[key][0]} {worst[key]:.2f}" for key in worst))
    text = "; ".join(words)
    line = {"color": colour("ink"), "width": 1, "dash": "dash"}
    return [
        Chart(
            "The partition",
            "Load of every rank over the mean of all ranks; 1, the dashed line, is perfect balance.",
            f"{text[:1].upper()}{text[1:]}.{group.seeds_text}",
            {"rank": list(range(ranks))} | {key: _pad(values, ranks) for key, values in loads.items()},
            traces,
            {
                "barmode": "group",
                "xaxis": {"type": "category"},
                "yaxis": {"title": {"text": "load / mean"}, "rangemode": "tozero"},
                "hovermode": "closest",
                "shapes": [
                    {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": line}
                ],
            },
            [Key(*LOADS[key], "box", (at,)) for at, key in enumerate(loads)],
            [
                ["", *(LOADS[key][0] for key in loads)],
                *(
                    [names[rank], *("–" if v is None else count_text(v) for v in _at(loads, rank))]
                    for rank in range(ranks)
                ),
            ],
        )
    ]


def _pad(values: list[float] | list[float | None], ranks: int) -> list[float | None]:
    return [*values, *[None] * (ranks - len(values))]


def _at(columns: dict[str, list[float]] | dict[str, list[float | None]], rank: int) -> list[float | None]:
    return [values[rank] if rank < len(values) else None for values in columns.values()]
