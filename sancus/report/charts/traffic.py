"""Bytes: by layer and direction, raw and on the wire; over the epochs; between the ranks."""

from __future__ import annotations

from typing import Any

from sancus.report.chart import Chart, Key, colour, thin, thinned_text, thinning
from sancus.report.groups import RunGroup
from sancus.report.run_reader import RunFiles, items, number, numbers, section
from sancus.report.units import byte_unit, bytes_text, share_text

STACK = {
    "wire_bytes": "payloads",
    "agreement_bytes": "agreement",
    "parameter_bytes": "parameters",
    "boundary_bytes": "boundaries",
    "topology_bytes": "topology",
}
RARE = ("boundary_bytes", "topology_bytes")  # shown where stages hand something on, where edges cross
SIZES = {
    "raw_bytes": ("raw", "s5"),
    "wire_bytes": ("on the wire", "s0"),
    "saved_bytes": ("saved by skipping", "s4"),
}
LABELLED_RANKS = 8


def bytes_by_stream(group: RunGroup) -> list[Chart]:
    """Payloads of the whole run, before and after the codec, and what was skipped."""
    sums: dict[tuple[int, str], dict[str, float]] = {}
    for stream in items(section(group.first.run, "communication").get("streams")):
        layer = number(stream.get("layer"))
        if layer is not None:
            stream_sizes = sums.setdefault(
                (int(layer), str(stream.get("direction"))), dict.fromkeys(SIZES, 0.0)
            )
            for key in SIZES:
                stream_sizes[key] += number(stream.get(key)) or 0.0
    if not sums or not any(sum(stream_sizes.values()) for stream_sizes in sums.values()):
        return []
    places = sorted(sums, key=lambda place: (place[0], place[1] != "forward"))
    names = [f"layer {layer}<br>{_direction(direction)}" for layer, direction in places]
    bars = {key: SIZES[key] for key in SIZES if any(sums[place][key] for place in places)}
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": [sums[place][key] for place in places],
            "marker": {"color": colour(shade), "line": {"width": 0}},
            "hovertemplate": f"%{{x}}: %{{y:.3~s}}B {name}<extra></extra>",
        }
        for key, (name, shade) in bars.items()
    ]
    total = {key: sum(stream_sizes[key] for stream_sizes in sums.values()) for key in SIZES}
    text = f"{bytes_text(total['wire_bytes'])} on the wire in all"
    if total["wire_bytes"] and total["raw_bytes"] > 1.05 * total["wire_bytes"]:
        text += f", {total['raw_bytes'] / total['wire_bytes']:.1f} times fewer than raw (payload alone)"
    if total["saved_bytes"]:
        part = total["saved_bytes"] / (total["saved_bytes"] + total["wire_bytes"])
        saving = f"{bytes_text(total['saved_bytes'])}, {share_text(part)} of the payload that always sends"
        text += f"; skipping saved another {saving}"
    return [
        Chart(
            "Bytes by layer and direction",
            "Payload bytes of the whole run before the codec, after it, and not sent because of a skip.",
            f"{text}.{group.seeds_text}",
            {
                "layer": [layer for layer, _ in places],
                "direction": [direction for _, direction in places],
                **{key: [sums[place][key] for place in places] for key in SIZES},
            },
            traces,
            {
                "barmode": "group",
                "xaxis": {"type": "category"},
                "yaxis": {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"},
                "hovermode": "closest",
            },
            [Key(name, shade, "box", (at,)) for at, (name, shade) in enumerate(bars.values())],
            [
                ["", *(name for name, _ in SIZES.values())],
                *([f"layer {p[0]} {p[1]}", *(bytes_text(sums[p][key]) for key in SIZES)] for p in places),
            ],
        )
    ]


def bytes_by_epoch(files: RunFiles) -> list[Chart]:
    """What each epoch handed to the transport, by purpose."""
    records = [epoch for epoch in files.epochs if number(epoch.get("wire_bytes")) is not None]
    if not records:
        return []
    size = thinning(len(records))
    epochs: list[float | None] = [float(epoch["epoch"]) for epoch in records]
    values = {key: [number(epoch.get(key)) or 0.0 for epoch in records] for key in STACK}
    for key in RARE:
        if not any(values[key]):
            del values[key]
    names = {key: STACK[key] for key in values}
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "all",
            "name": name,
            "x": thin(epochs, size),
            "y": thin(values[key], size),
            "line": {"color": colour(f"s{at}"), "width": 1, "shape": "hvh"},
            "fillcolor": colour(f"s{at}"),
            "hovertemplate": f"epoch %{{x:.0f}}: %{{y:.3~s}}B {name}<extra></extra>",
        }
        for at, (key, name) in enumerate(names.items())
    ]
    wire, whole = values["wire_bytes"], [sum(sizes) for sizes in zip(*values.values(), strict=True)]
    mean, largest = sum(whole) / len(whole), max(whole)
    payload = bytes_text(sum(wire) / len(wire))
    return [
        Chart(
            "Bytes, epoch by epoch",
            "Everything that was handed to the transport in training, once a receiver.",
            f"In all: mean {bytes_text(mean)} an epoch, at most {bytes_text(largest)}; payloads alone: mean "
            f"{payload}.{thinned_text(size)}",
            {"epoch": epochs} | dict(values),
            traces,
            {
                "xaxis": {"title": {"text": "epoch"}},
                "yaxis": {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"},
            },
            [Key(name, f"s{at}", "box", (at,)) for at, name in enumerate(names.values())],
            [
                ["", "mean", "most"],
                *([STACK[k], bytes_text(sum(v) / len(v)), bytes_text(max(v))] for k, v in values.items()),
            ],
        )
    ]


def payload_matrix(group: RunGroup) -> list[Chart]:
    """Owner × receiver, payload bytes of the whole run."""
    rows = section(group.first.run, "communication").get("payload_matrix")
    matrix = [numbers(row) for row in rows] if isinstance(rows, list) else []
    ranks = len(matrix)
    payloads: list[list[float]] = [[value or 0.0 for value in row] for row in matrix]
    if ranks < 2 or any(len(row) != ranks for row in payloads) or not any(map(sum, payloads)):
        return []
    size, unit = byte_unit(max(map(max, payloads)))
    names = [str(rank) for rank in range(ranks)]
    cells: list[list[Any]] = [
        [None if owner == receiver else value for receiver, value in enumerate(row)]
        for owner, row in enumerate(payloads)
    ]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": cells,
        "zmin": 0,
        "zmax": max(map(max, payloads)),
        "colorscale": [[0.0, colour("heat-low")], [1.0, colour("heat-high")]],
        "colorbar": {"thickness": 10, "tickformat": "~s", "ticksuffix": "B", "outlinewidth": 0, "len": 1},
        "hoverongaps": False,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "rank %{y} to rank %{x}: %{z:.3~s}B<extra></extra>",
    }
    if ranks <= LABELLED_RANKS:
        trace |= {
            "text": [["" if v is None else f"{v / size:.3g}" for v in row] for row in cells],
            "texttemplate": "%{text}",
        }
    outgoing = [sum(row) for row in payloads]
    incoming = [sum(row[rank] for row in payloads) for rank in range(ranks)]
    busiest = max(range(ranks), key=lambda rank: outgoing[rank])
    listener = max(range(ranks), key=lambda rank: incoming[rank])
    return [
        Chart(
            "Payloads from rank to rank",
            "Payload bytes of the whole run from each owner (row) to each receiver (column)"
            + (f", in {unit}." if ranks <= LABELLED_RANKS else "."),
            f"Rank {busiest} sent most, {bytes_text(outgoing[busiest])}; rank {listener} received most, "
            f"{bytes_text(incoming[listener])}.{group.seeds_text}",
            {
                "owner": [owner for owner in range(ranks) for _ in range(ranks)],
                "receiver": [receiver for _ in range(ranks) for receiver in range(ranks)],
                "wire_bytes": [value for row in payloads for value in row],
            },
            [trace],
            {
                "xaxis": {"title": {"text": "receiver"}, "type": "category", "showgrid": False},
                "yaxis": {
                    "title": {"text": "owner"},
                    "type": "category",
                    "autorange": "reversed",
                    "showgrid": False,
                },
                "hovermode": "closest",
            },
            (),
            [
                ["", "sent", "received"],
                *(
                    [f"rank {rank}", bytes_text(outgoing[rank]), bytes_text(incoming[rank])]
                    for rank in range(ranks)
                ),
            ],
            height=320,
        )
    ]


def _direction(text: str) -> str:
    return text if text in ("forward", "backward") else "other"
