"""A run in a few lines of text: the same words on the terminal and on the page.

Every function takes the dictionary of `run.json` and gives rows (label, value); a row whose numbers were not
recorded is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sancus.report.run_reader import items, number, numbers, section
from sancus.report.sampled import batches
from sancus.report.seconds import split_of, split_text
from sancus.report.units import bytes_text, count_text, number_text, score_text, seconds_text, share_text
from sancus.report.volume import all_bytes, fewer_than_in_full, times_text

Rows = list[tuple[str, str]]

SHOWN_SECONDS = 5e-5  # less would be shown as nothing
BYTE_KEYS = ("wire_bytes", "raw_bytes", "agreement_bytes", "parameter_bytes", "raw_parameter_bytes")

# Shown where there are stages, and where edges cross.
RARE = {"boundary_bytes": "boundary bytes", "topology_bytes": "topology bytes"}


def title(run: dict[str, Any]) -> str:
    """`gcn on cora`: what was trained, on what, as far as it is known."""
    config = section(run, "config")
    model = config.get("model")
    if isinstance(model, dict):
        model = model.get("name")
    graph = section(run, "graph").get("name")
    names = [name for name in (model, graph) if isinstance(name, str) and name]
    return " on ".join(names) or "A Sancus run"


def result(run: dict[str, Any]) -> Rows:
    """The score that counts: test at the epoch that was best in validation."""
    values = section(run, "result")
    metric = str(values.get("metric") or "score")
    best, epochs = number(values.get("best_epoch")), number(values.get("epochs"))
    rows: Rows = []
    for key, name in (("test", "test"), ("val", "validation")):
        score = number(values.get(key))
        if score is not None:
            rows.append((f"{name} {metric}", score_text(score)))
        elif key in values and values[key] is None:
            rows.append((f"{name} {metric}", "undefined"))
    if best is not None:
        rows.append(("best validation epoch", count_text(best)))
    if epochs is not None:
        rows.append(("epochs", count_text(epochs)))
    return rows


def bill(run: dict[str, Any]) -> Rows:
    """What the run cost: bytes, decisions, time, memory; means an epoch, and totals. All bytes come first."""
    mean, total = section(run, "communication", "per_epoch"), section(run, "communication", "total")
    rows: Rows = []
    _append(rows, "all bytes", _mean_and_total(all_bytes(mean), all_bytes(total), bytes_text))
    _append(rows, "times fewer", _times_fewer(run))
    for key in BYTE_KEYS:
        _append(rows, key.replace("_", " "), _mean_and_total(mean.get(key), total.get(key), bytes_text))
    for key, label in RARE.items():
        if number(total.get(key)):
            _append(rows, label, _mean_and_total(mean.get(key), total.get(key), bytes_text))
    _note(rows, RARE["boundary_bytes"], "between stages; wire bytes are of ranks within one")
    _note(rows, "raw bytes", _times_the_wire(mean, total))
    coded = _times_coded("parameter_bytes", "raw_parameter_bytes", mean, total)
    _note(rows, "raw parameter bytes", None if coded is None else f"{coded:.1f} times the parameter bytes")
    evaluation = number(total.get("evaluation_bytes"))
    if evaluation is not None:
        rows.append(("evaluation bytes", f"{bytes_text(evaluation)} in all"))
    for key in ("sends", "skips"):
        _append(rows, key, _mean_and_total(mean.get(key), total.get(key), count_text))
    skips = skip_share(run)
    _note(rows, "skips", None if skips is None else f"{share_text(skips)} of all decisions")
    return rows + _codec(run) + _staleness(run) + batches(run) + _stages(run) + _time(run) + _memory(run)


def _codec(run: dict[str, Any]) -> Rows:
    """How far decoded payloads were from what was encoded, in the worst stream, and what it does to rows."""
    communication = section(run, "communication")
    streams = [each for each in items(communication.get("streams")) if number(each.get("codec_error"))]
    if not streams:
        return []
    worst = max(streams, key=lambda each: float(each["codec_error"]))
    where = f"layer {worst.get('layer')} {worst.get('direction')}, owner {worst.get('owner')}"
    rows = [("codec error", f"{number_text(worst['codec_error'])} of a payload's size ({where}, the worst)")]
    noise = number(communication.get("codec_noise"))
    if noise is not None:
        verdict = "more than training was seen to stand" if noise > 1 else "of 1, which training stands"
        rows.append(("codec noise", f"{number_text(noise)}: {verdict}"))
    return rows


def _staleness(run: dict[str, Any]) -> Rows:
    """What skipping saved against `always`, and how old and how far off the histories were."""
    communication, total = section(run, "communication"), section(run, "communication", "total")
    rows: Rows = []
    saving, wire = number(total.get("saved_bytes")), number(total.get("wire_bytes"))
    whole = all_bytes(total)
    if saving is not None and wire is not None and whole and saving + wire:
        shares = f"{share_text(saving / (saving + whole))} of all bytes under always"
        shares += f"; of the payload alone {share_text(saving / (saving + wire))}"
        rows.append(("saved by skipping", f"{bytes_text(saving)} in all ({shares})"))
    age, drift = number(communication.get("max_age")), number(communication.get("max_drift"))
    if age is not None:
        rows.append(("oldest history used", f"{count_text(age)} epochs"))
    if drift is not None:
        rows.append(("largest drift", number_text(drift)))
    return rows


def _stages(run: dict[str, Any]) -> Rows:
    """Of a pipeline: how many edges were stale, and how much stages waited, beside the formula."""
    means, facts = section(run, "schedule", "per_epoch"), section(run, "schedule")
    stale, bubble = (number(means.get(f"{key}_share")) for key in ("stale", "bubble"))
    formula = number(facts.get("bubble_formula"))
    rows: Rows = [] if stale is None else [("stale edges", f"{share_text(stale)} of all, mean of the epochs")]
    if bubble is not None:
        equal = f" (equal stages: (S − 1) / (K + S − 1) = {share_text(formula or 0.0)})"
        beside = "" if formula is None else equal
        rows.append(("stages waited", f"{share_text(bubble)} of an epoch{beside}"))
    return rows


def _time(run: dict[str, Any]) -> Rows:
    values = section(run, "result")
    seconds = _mean_and_total(values.get("seconds_per_epoch"), values.get("seconds_total"), seconds_text)
    rows: Rows = [] if seconds is None else [("time", seconds)]
    split = split_of(lambda name: number(values.get(f"{name}_per_epoch")))
    if split is not None:
        rows.append(("of an epoch's time", split_text(split)))
    hidden = number(values.get("hidden_seconds_per_epoch"))
    if hidden and hidden >= SHOWN_SECONDS:
        rows.append(("communication hidden", f"{seconds_text(hidden)} an epoch, behind other work"))
    return rows


def breakdown(run: dict[str, Any]) -> list[list[str]]:
    """Head and one line a stream: layer, direction, owner, bytes, decisions."""
    lines = [["layer", "direction", "owner", "wire", "saved", "sends", "skips"]]
    for stream in items(section(run, "communication").get("streams")):
        sizes = [bytes_text(number(stream.get(key)) or 0) for key in ("wire_bytes", "saved_bytes")]
        counts = [count_text(number(stream.get(key)) or 0) for key in ("sends", "skips")]
        place = [str(stream.get(key)) for key in ("layer", "direction", "owner")]
        lines.append([*place, *sizes, *counts])
    return lines


def skip_share(run: dict[str, Any]) -> float | None:
    """Skips as a share of all decisions, where both were counted."""
    total = section(run, "communication", "total")
    sends, skips = number(total.get("sends")), number(total.get("skips"))
    if sends is None or skips is None or sends + skips == 0:
        return None
    return skips / (sends + skips)


def _memory(run: dict[str, Any]) -> Rows:
    """The rank that needs most decides whether a run fits, so the maximum is shown."""
    rows: Rows = []
    cache = section(run, "cache")
    history = [value for value in numbers(cache.get("history_bytes")) if value is not None]
    shares = [value for value in numbers(cache.get("share_of_peak")) if value is not None]
    peaks = [value for value in numbers(section(run, "memory").get("peak_bytes")) if value is not None]
    if history:
        rows.append(("history a rank", f"at most {bytes_text(max(history))}"))
    _note(rows, "history a rank", f"at most {share_text(max(shares))} of peak memory" if shares else None)
    if peaks:
        rows.append(("peak memory a rank", f"at most {bytes_text(max(peaks))}"))
    return rows


def _mean_and_total(mean: Any, total: Any, text: Callable[[float], str]) -> str | None:
    texts = []
    if number(mean) is not None:
        texts.append(f"{text(mean)} an epoch")
    if number(total) is not None:
        texts.append(f"{text(total)} in all")
    return ", ".join(texts) or None


def _times_the_wire(mean: dict[str, Any], total: dict[str, Any]) -> str | None:
    """How much the codec saved, where it saved at all."""
    times = _times_coded("wire_bytes", "raw_bytes", mean, total)
    return None if times is None else f"payload alone: {times:.1f} times the wire bytes"


def _times_coded(wire: str, raw: str, mean: dict[str, Any], total: dict[str, Any]) -> float | None:
    """How many times fewer bytes a codec made of some; None where it made none of them fewer."""
    source = total if number(total.get(wire)) else mean
    after, before = number(source.get(wire)), number(source.get(raw))
    return None if not after or before is None or before < 1.05 * after else before / after


def _times_fewer(run: dict[str, Any]) -> str | None:
    """What codec and policy save together, of all bytes and of the payload alone."""
    fewer = fewer_than_in_full(run)
    if fewer is None:
        return None
    alone = "" if fewer.payload is None else f"; payload alone {times_text(fewer.payload)}"
    return f"{times_text(fewer.in_all)} fewer than with every payload sent in full precision{alone}"


def _append(rows: Rows, label: str, value: str | None) -> None:
    if value is not None:
        rows.append((label, value))


def _note(rows: Rows, label: str, note: str | None) -> None:
    """Add a remark in brackets to the row of that label, if there are both."""
    for place, (name, value) in enumerate(rows):
        if name == label and note is not None:
            rows[place] = (name, f"{value} ({note})")
