"""The sections of the page that are text and tables; a section without data is an empty list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sancus.report.markup import Markup, table, tag
from sancus.report.run_files import items, number, numbers, section
from sancus.report.summary import bill, result, skip_share, title
from sancus.report.units import (
    bytes_text,
    count_text,
    number_text,
    score_text,
    seconds_text,
    share_text,
)

BILL = (
    "Bytes are counted where they are handed to the transport, once a receiver. Wire bytes are payloads "
    "after the codec, raw bytes the same payloads before it. A send is a payload that crossed, a skip one "
    "that the receivers took from their history."
)
STREAMS = "Wire bytes of the whole run by stream, then by owner. Small: sends of all decisions."
STREAM_KEYS = ("wire_bytes", "raw_bytes", "sends", "skips")
RANKS = (
    "Nonzeros are the stored edges in the rows of a rank, which is its aggregation work. History is what it "
    "keeps of other ranks' payloads, peak its resident memory."
)


def header(run: dict[str, Any]) -> list[Markup]:
    """What was run, in one heading and one line; the four numbers that a reader looks for first."""
    ranks = number(section(run, "hardware").get("ranks"))
    graph = section(run, "graph")
    facts = []
    if ranks is not None:
        facts.append("1 rank" if ranks == 1 else f"{count_text(ranks)} ranks")
    for key in ("nodes", "edges", "features", "classes"):
        value = number(graph.get(key))
        if value is not None:
            facts.append(f"{count_text(value)} {key}")
    return [tag("header", tag("h1", title(run)), tag("p", " · ".join(facts)), *_tiles(run))]


def missing_files(missing: list[str]) -> list[Markup]:
    """What a killed run did not leave behind."""
    if not missing:
        return []
    points = tag("ul", *(tag("li", sentence) for sentence in missing))
    return [tag("div", tag("strong", "This run is incomplete."), points, class_="missing", role="note")]


def results(run: dict[str, Any]) -> list[Markup]:
    """The score."""
    caption = "Test is taken at the epoch that was best in validation, with a fresh and exact pass."
    return _pairs("Result", caption, result(run))


def costs(run: dict[str, Any], epochs: list[dict[str, Any]]) -> list[Markup]:
    """The bill, how stale the run ever was, and the bytes by stream."""
    rows = bill(run)
    for key, label, text in (
        ("max_age", "largest age", _epochs_text),
        ("max_drift", "largest drift", number_text),
    ):
        seen = [value for value in (number(epoch.get(key)) for epoch in epochs) if value is not None]
        if seen:
            rows.append((label, text(max(seen))))
    caption = BILL if bill(run) else "As far as the recorded epochs tell."
    return [*_pairs("The bill", caption, rows), *_streams(run)]


def partition(run: dict[str, Any]) -> list[Markup]:
    """How the graph was cut, and what that costs under each plan."""
    values = section(run, "partition")
    rows = []
    if values.get("partitioner"):
        rows.append(("partitioner", str(values["partitioner"])))
    cut, share = number(values.get("edge_cut")), number(values.get("edge_cut_share"))
    if cut is not None:
        part = "" if share is None else f" ({share_text(share)} of all edges)"
        rows.append(("edge cut", count_text(cut) + part))
    for plan, count in section(values, "payload_rows").items():
        if number(count) is not None:
            rows.append((f"rows sent, plan {plan}", f"{count_text(count)} an aggregation"))
    for name in ("rows", "nonzeros"):
        known = [value for value in numbers(values.get(name)) if value is not None]
        if sum(known):
            ratio = max(known) * len(known) / sum(known)
            rows.append((f"imbalance of {name}", f"{ratio:.2f} (largest / mean)"))
    return _pairs("Partition", "Measured before training.", rows)


def ranks(run: dict[str, Any]) -> list[Markup]:
    """What each rank owns, keeps and needs: one row a rank."""
    columns: list[tuple[str, str, str, Callable[[float], str]]] = [
        ("rows", "partition", "rows", count_text),
        ("nonzeros", "partition", "nonzeros", count_text),
        ("history", "cache", "history_bytes", bytes_text),
        ("share of peak", "cache", "share_of_peak", share_text),
        ("peak memory", "memory", "peak_bytes", bytes_text),
    ]
    shown = [
        (name, ["–" if value is None else text(value) for value in numbers(section(run, part).get(key))])
        for name, part, key, text in columns
    ]
    shown = [column for column in shown if column[1]]
    count = max((len(cells) for _, cells in shown), default=0)
    rows = [
        [f"rank {rank}", *(cells[rank] if rank < len(cells) else "–" for _, cells in shown)]
        for rank in range(count)
    ]
    return [tag("h2", "Ranks"), table(RANKS, ["", *(name for name, _ in shown)], rows)] if rows else []


def settings(run: dict[str, Any]) -> list[Markup]:
    """Everything that is needed to repeat the run."""
    parts: list[Markup] = []
    if run.get("command"):
        parts += [tag("h2", "Repeat this run"), tag("pre", tag("code", str(run["command"])))]
    for name, heading, caption in (
        ("config", "Settings", "Every setting, with defaults filled in."),
        ("hardware", "Hardware", "Where it ran."),
        ("versions", "Versions", "What it ran with."),
    ):
        parts += _pairs(heading, caption, flatten(section(run, name)))
    return parts


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as rows: `{"a": {"b": 1}}` is `a.b`, `1`; sizes in bytes get a unit."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            rows += flatten(value, f"{name}.")
        elif name.endswith("_bytes") and number(value) is not None:
            rows.append((name, bytes_text(value)))
        else:
            rows.append((name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return rows


def _tiles(run: dict[str, Any]) -> list[Markup]:
    values, mean = section(run, "result"), section(run, "communication", "per_epoch")
    candidates = (
        (f"test {values.get('metric') or 'score'}", number(values.get("test")), score_text),
        ("wire bytes an epoch", number(mean.get("wire_bytes")), bytes_text),
        ("decisions skipped", skip_share(run), share_text),
        ("time an epoch", number(values.get("seconds_per_epoch")), seconds_text),
    )
    tiles = [
        tag("div", tag("dt", label), tag("dd", text(value)))
        for label, value, text in candidates
        if value is not None
    ]
    return [tag("dl", *tiles, class_="tiles")] if tiles else []


def _pairs(heading: str, caption: str, rows: list[tuple[str, str]]) -> list[Markup]:
    return [tag("h2", heading), table(caption, [], rows)] if rows else []


def _streams(run: dict[str, Any]) -> list[Markup]:
    """Rows are layer and direction, columns owners."""
    cells: dict[tuple[float, str], dict[float, dict[str, Any]]] = {}
    for stream in items(section(run, "communication").get("streams")):
        layer, owner = number(stream.get("layer")), number(stream.get("owner"))
        if layer is not None and owner is not None:
            cells.setdefault((layer, str(stream.get("direction"))), {})[owner] = stream
    if not cells:
        return []
    owners = sorted({owner for row in cells.values() for owner in row})
    rows = []
    for layer, direction in sorted(cells, key=lambda key: (key[0], key[1] != "forward")):
        row = cells[layer, direction]
        total = {key: sum(number(each.get(key)) or 0 for each in row.values()) for key in STREAM_KEYS}
        shown = [_stream_cell(row[owner]) if owner in row else "–" for owner in owners]
        sums = [_stream_cell(total), bytes_text(total["raw_bytes"])]
        rows.append([f"layer {layer:.0f} {direction}", *sums, *shown])
    head = ["", "all owners", "raw", *(f"owner {owner:.0f}" for owner in owners)]
    return [tag("h2", "Bytes by layer, direction and owner"), table(STREAMS, head, rows)]


def _stream_cell(stream: dict[str, Any]) -> Markup:
    wire = number(stream.get("wire_bytes"))
    sends, skips = number(stream.get("sends")) or 0, number(stream.get("skips")) or 0
    counts = tag("small", f"{count_text(sends)} of {count_text(sends + skips)} sent")
    return Markup(tag("span", "–" if wire is None else bytes_text(wire)) + counts)


def _epochs_text(value: float) -> str:
    return "1 epoch" if value == 1 else f"{count_text(value)} epochs"
