"""The sections of the page that are text and tables; a section without data is an empty list."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from sancus.report.groups import RunGroup, an_epoch, of_result
from sancus.report.markup import Markup, plain_table, table, tag
from sancus.report.prose import opening
from sancus.report.run_reader import RunFiles, items, loss_of, number, numbers, section
from sancus.report.summary import bill, result, skip_share, title
from sancus.report.units import (
    bytes_text,
    count_text,
    number_text,
    score_text,
    seconds_text,
    share_text,
)
from sancus.report.volume import all_an_epoch, all_bytes, ratio, times_text

BILL = (
    "Bytes are counted where they are handed to the transport, once a receiver. All bytes are payloads, "
    "parameters and agreement. Wire bytes are payloads after the codec, raw bytes the same payloads before "
    "it. A send is a payload that crossed, a skip one that the receivers took from their history."
)
COMPARISON = (
    "Means over seeds, with the standard deviation of the score. All bytes are payloads after the codec, "
    "parameters and agreement, once a receiver; how many times fewer is against the first row. History is "
    "that of the rank which keeps most."
)
STREAMS = (
    "Wire bytes of the whole run by stream, then by owner. Small: sends of all decisions; a constant input "
    "crosses once, without a decision."
)
STREAM_KEYS = ("wire_bytes", "raw_bytes", "sends", "skips")
RANKS = (
    "Nonzeros are the stored edges in the rows of a rank, which is its aggregation work. History is what it "
    "keeps of other ranks' payloads, peak its resident memory."
)


def page_title(runs: Sequence[RunFiles]) -> str:
    """`gcn on cora`, or `6 runs · gcn on cora` where all of them are that."""
    names = list(dict.fromkeys(title(files.run) for files in runs))
    if len(runs) == 1:
        return names[0]
    return f"{len(runs)} runs" + (f" · {names[0]}" if len(names) == 1 else "")


def run_name(files: RunFiles) -> str:
    """A run among others: preset, seed, directory."""
    config = section(files.run, "config")
    seed = number(section(config, "training").get("seed"))
    words = [str(config["preset"])] if config.get("preset") else []
    words += [f"seed {seed:.0f}"] if seed is not None else []
    return " · ".join([*words, files.directory.name])


def header(runs: Sequence[RunFiles], groups: Sequence[RunGroup]) -> Markup:
    """What was run, in one heading and one line; the numbers that a reader looks for first: the bytes."""
    run = runs[0].run
    ranks = {number(section(files.run, "hardware").get("ranks")) for files in runs} - {None}
    facts = []
    if ranks:
        counts = " or ".join(count_text(rank) for rank in sorted(rank for rank in ranks if rank is not None))
        facts.append("1 rank" if counts == "1" else f"{counts} ranks")
    graphs = {str(section(files.run, "graph").get("name")) for files in runs if section(files.run, "graph")}
    for key in ("nodes", "edges", "features", "classes") if len(graphs) < 2 else ():
        value = number(section(run, "graph").get(key))
        if value is not None:
            facts.append(f"{count_text(value)} {key}")
    if len(groups) < len(runs):
        facts.append(f"{len(groups)} settings with several seeds")
    elif len(runs) == 1 and section(run, "config").get("preset"):
        facts.append(f"preset {section(run, 'config')['preset']}")
    switch = tag("button", "Dark", type="button", id="theme", hidden="hidden")
    tiles = _tiles(run) if len(runs) == 1 else []
    note = tag("noscript", tag("p", "The figures need JavaScript; their summaries and tables do not."))
    return tag(
        "header",
        tag("h1", page_title(runs)),
        tag("p", " · ".join(facts)),
        switch,
        opening(runs, groups),
        note,
        *tiles,
    )


def warnings(files: RunFiles, *, with_name: bool) -> list[Markup]:
    """What to know before anything else: a loss that was not finite, missing files of a killed run."""
    losses = [loss_of(epoch) for epoch in files.epochs if "loss" in epoch]
    bad = losses.count(None)
    sentences = [f"The loss was not finite in {bad} of {len(losses)} epochs."] if bad else []
    noise = [value for epoch in files.epochs if (value := number(epoch.get("codec_noise"))) is not None]
    if noise and max(noise) > 1:
        times = f"up to {number_text(max(noise))} times what training was seen to stand"
        sentences.append(f"The codec's rounding errors were {times}.")
    sentences += files.missing
    if not sentences:
        return []
    points = tag("ul", *(tag("li", sentence) for sentence in sentences))
    who = run_name(files) if with_name else "This run"
    what = "is incomplete." if files.missing else "went wrong."
    return [tag("div", tag("strong", f"{who} {what}"), points, class_="missing", role="note")]


def comparison(groups: Sequence[RunGroup]) -> list[Markup]:
    """One row a group: what it scored and what that cost, against the first."""
    metric = next((str(m) for g in groups if (m := section(g.first.run, "result").get("metric"))), "score")
    head = [
        "",
        f"test {metric}",
        "all bytes an epoch",
        "times fewer",
        "payload alone",
        "times fewer",
        "skipped",
        "time an epoch",
        "max age",
        "history",
    ]
    wire = [group.mean(an_epoch("wire_bytes")) for group in groups]
    whole = [group.mean(all_an_epoch) for group in groups]
    rows = []
    for place, group in enumerate(groups):
        rows.append(
            [
                group.label + (f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""),
                _mean_and_deviation(group.values(of_result("test"))),
                _text(whole[place], bytes_text),
                times_text(ratio(whole[0], whole[place])),
                _text(wire[place], bytes_text),
                times_text(ratio(wire[0], wire[place])),
                _text(group.mean(lambda files: skip_share(files.run)), share_text),
                _text(group.mean(an_epoch("seconds")), seconds_text),
                _text(group.mean(_max_age), count_text),
                _text(group.mean(_largest_history), bytes_text),
            ]
        )
    return [table(COMPARISON, head, rows)] if rows else []


def _mean_and_deviation(values: Sequence[float]) -> str:
    """Mean ± standard deviation over seeds."""
    if not values:
        return "–"
    mean = score_text(statistics.fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {100 * statistics.stdev(values):.2f}"


def _text(value: float | None, text: Callable[[float], str]) -> str:
    return "–" if value is None else text(value)


def _max_age(files: RunFiles) -> float | None:
    ages = [age for age in (number(epoch.get("max_age")) for epoch in files.epochs) if age is not None]
    return max(ages, default=None)


def _largest_history(files: RunFiles) -> float | None:
    sizes = [size for size in numbers(section(files.run, "cache").get("history_bytes")) if size is not None]
    return max(sizes, default=None)


def details(files: RunFiles) -> list[Markup]:
    """The tables of one run: its bill, streams, partition, ranks, and everything that repeats it."""
    run = files.run
    return [*costs(run, files.epochs), *_streams(run), *partition(run), *ranks(run), *settings(run)]


def costs(run: dict[str, Any], epochs: Sequence[dict[str, Any]]) -> list[Markup]:
    """The score and the bill; where a killed run wrote no bill, the sums over its epochs."""
    rows = [*result(run), *bill(run)]
    if not bill(run):
        ages = [age for age in (number(epoch.get("max_age")) for epoch in epochs) if age is not None]
        whole = [size for size in map(all_bytes, epochs) if size is not None]
        sizes = [size for size in (number(epoch.get("wire_bytes")) for epoch in epochs) if size is not None]
        rows += [("all bytes", f"{bytes_text(sum(whole))} in {len(whole)} epochs")] if whole else []
        rows += [("wire bytes", f"{bytes_text(sum(sizes))} in {len(sizes)} epochs")] if sizes else []
        rows += [("oldest history used", f"{count_text(max(ages))} epochs")] if ages else []
    caption = BILL if bill(run) else "As far as the recorded epochs tell."
    return (
        [tag("h2", "The bill"), _halves(rows, "The bill"), tag("p", caption, class_="note")] if rows else []
    )


def partition(run: dict[str, Any]) -> list[Markup]:
    """How the graph was cut, and what that costs under each plan."""
    values = section(run, "partition")
    rows = []
    if values.get("partitioner"):
        rows.append(("partitioner", str(values["partitioner"])))
    edge_cut, share = number(values.get("edge_cut")), number(values.get("edge_cut_share"))
    if edge_cut is not None:
        part = "" if share is None else f" ({share_text(share)} of all edges)"
        rows.append(("edge cut", count_text(edge_cut) + part))
    for plan, count in section(values, "payload_rows").items():
        if number(count) is not None:
            rows.append((f"rows sent, plan {plan}", f"{count_text(count)} an aggregation"))
    for name in ("rows", "nonzeros"):
        values_a_rank = [value for value in numbers(values.get(name)) if value is not None]
        if sum(values_a_rank):
            ratio = max(values_a_rank) * len(values_a_rank) / sum(values_a_rank)
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
    cell_columns = [
        (name, ["–" if value is None else text(value) for value in numbers(section(run, part).get(key))])
        for name, part, key, text in columns
    ]
    cell_columns = [column for column in cell_columns if column[1]]
    count = max((len(cells) for _, cells in cell_columns), default=0)
    rows = [
        [f"rank {rank}", *(cells[rank] if rank < len(cells) else "–" for _, cells in cell_columns)]
        for rank in range(count)
    ]
    return [tag("h2", "Ranks"), table(RANKS, ["", *(name for name, _ in cell_columns)], rows)] if rows else []


def settings(run: dict[str, Any]) -> list[Markup]:
    """Everything that is needed to repeat the run."""
    parts: list[Markup] = []
    if run.get("command"):
        parts += [tag("h2", "Repeat this run"), tag("pre", tag("code", str(run["command"])))]
    config = flatten(section(run, "config"))
    if config:
        parts += [tag("h2", "Settings"), _halves(config, "Settings")]
    machine = [
        tag("div", *_pairs(heading, caption, flatten(section(run, name))))
        for name, heading, caption in (
            ("hardware", "Hardware", "Where it ran."),
            ("versions", "Versions", "What it ran with."),
        )
        if section(run, name)
    ]
    return [*parts, tag("div", *machine, class_="halves")] if machine else parts


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
        ("all bytes an epoch", all_bytes(mean), bytes_text),
        ("payload alone", number(mean.get("wire_bytes")), bytes_text),
        (f"test {values.get('metric') or 'score'}", number(values.get("test")), score_text),
        ("decisions skipped", skip_share(run), share_text),
        ("time an epoch", number(values.get("seconds_per_epoch")), seconds_text),
    )
    tiles = [
        tag("div", tag("dt", label), tag("dd", text(value)))
        for label, value, text in candidates
        if value is not None
    ]
    return [tag("dl", *tiles, class_="tiles")] if tiles else []


def _halves(rows: Sequence[tuple[str, str]], name: str) -> Markup:
    """A long list of pairs in two columns, where there is room."""
    half = -(-len(rows) // 2)
    return tag(
        "div", *(plain_table([], side, name) for side in (rows[:half], rows[half:]) if side), class_="halves"
    )


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
        owner_cells = [_stream_cell(row[owner]) if owner in row else "–" for owner in owners]
        sums = [_stream_cell(total), bytes_text(total["raw_bytes"])]
        rows.append([f"layer {layer:.0f} {direction}", *sums, *owner_cells])
    head = ["", "all owners", "raw", *(f"owner {owner:.0f}" for owner in owners)]
    return [tag("h2", "Bytes by layer, direction and owner"), table(STREAMS, head, rows)]


def _stream_cell(stream: dict[str, Any]) -> Markup:
    wire = number(stream.get("wire_bytes"))
    sends, skips = number(stream.get("sends")) or 0, number(stream.get("skips")) or 0
    decisions = f"{count_text(sends)} of {count_text(sends + skips)} sent" if sends + skips else "once"
    counts = tag("small", decisions)
    return Markup(tag("span", "–" if wire is None else bytes_text(wire)) + counts)
