"""The figures of a case: every number that a table may show, each computed in one place, with its unit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Outcome = Mapping[str, Any]
BILLED_BYTES = ("wire_bytes", "boundary_bytes", "agreement_bytes", "parameter_bytes")  # all bytes of training
COUNTED_BYTES = (*BILLED_BYTES, "evaluation_bytes")
COLUMNS = "columns"  # not a number: what crosses, layer by layer; see `columns_text`
Values = dict[str, float | None]


@dataclass(frozen=True)
class Figure:
    """How a number is called and shown."""

    head: str
    form: Callable[[float], str]
    over_repeats: Callable[[Sequence[float]], float] = statistics.median


def _fixed(digits: int, unit: str = "") -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}{unit}"


def _times(value: float) -> str:
    return f"{value:.1f} ×" if value < 100 else f"{value:.0f} ×"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.095 else f"{100 * value:.2g} %"


def _megabytes(value: float) -> str:
    return f"{value:.3g}"


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _signed(value: float) -> str:
    text = f"{value:+.1f}".replace("-", "−")
    return text if text[1:].strip("0.") else text[1:]


FIGURES: dict[str, Figure] = {
    COLUMNS: Figure("columns that cross, forward / backward", str),
    "test": Figure("test %", _fixed(1), statistics.fmean),
    "points": Figure("points to baseline", _signed, statistics.fmean),
    "seconds": Figure("epoch, s", _seconds),
    "compute_seconds": Figure("compute, s", _seconds),
    "comm_seconds": Figure("communicate, s", _seconds),
    "agreement_seconds": Figure("agree, s", _seconds),
    "hidden_seconds": Figure("hidden, s", _seconds),
    "aggregation_share": Figure("aggregate", _share),
    "dense_share": Figure("dense", _share),
    "codec_share": Figure("codec", _share),
    "transfer_share": Figure("communicate", _share),
    "waiting_share": Figure("wait", _share),
    "agreement_share": Figure("agree", _share),
    "other_share": Figure("other", _share),
    "compute_ratio": Figure("compute, of communication of the baseline", _fixed(3)),
    "comm_share": Figure("communicate, share", _share),
    "comm_ratio": Figure("communicate to baseline", _share),
    "throughput": Figure("epochs/s", _seconds),
    "speedup": Figure("epoch sooner", _times),
    "all_mb": Figure("all MB/epoch", _megabytes),
    "all_share": Figure("all bytes to baseline", _share),
    "fewer": Figure("all bytes: times fewer", _times),
    "wire_mb": Figure("payload MB/epoch", _megabytes),
    "boundary_mb": Figure("boundary MB/epoch", _megabytes),
    "stale_share": Figure("stale edges", _share),
    "bubble": Figure("waiting, share of a pass", _share),
    "bubble_formula": Figure("(S − 1) / (K + S − 1)", _share),
    "wire_share": Figure("payload to baseline", _share),
    "payload_fewer": Figure("payload: times fewer", _times),
    "mean_fewer": Figure("all bytes, first epoch included: times fewer", _times),
    "forward_mb": Figure("forward MB/epoch", _megabytes),
    "first_mb": Figure("payload MB, first epoch", _megabytes),
    "forward_share": Figure("forward to baseline", _share),
    "other_mb": Figure("agreement + parameter MB/epoch", _megabytes),
    "link_mb": Figure("link MB/epoch", _megabytes),
    "link_ratio": Figure("link / counted", _fixed(3)),
    "sent_share": Figure("embeddings sent", _share),
    "skipped_share": Figure("embeddings skipped", _share),
    "hidden_skipped": Figure("hidden embeddings skipped", _share),
    "max_age": Figure("oldest", _fixed(0), max),
    "history_mb": Figure("history MB a rank", _megabytes),
    "history_share": Figure("history of peak", _share),
    "peak_mb": Figure("peak MB a rank", _megabytes),
    "epochs_to_target": Figure("epochs to target", _fixed(0)),
    "seconds_to_target": Figure("s to target", _seconds),
    "sooner": Figure("sooner to target", _times),
    "best_epoch": Figure("best epoch", _fixed(0)),
}


def own_figures(outcome: Outcome) -> Values:
    """The figures of one case that need no other case.

    Times and bytes are means over the epochs but the first, which sets up (`first_seconds`, `first_mb`):
    where a policy sends in every second epoch, a median would show one of two kinds of epochs.
    """
    epochs, bill = outcome["epochs"], outcome["communication"]
    later = epochs[1:] or epochs
    figures: Values = {name: _mean(later, name) for name in EPOCH_TIMES}
    seconds = figures["seconds"] or 0.0
    return figures | {
        "first_seconds": epochs[0]["seconds"],
        "test": 100 * outcome["test"],
        "val": outcome["val"],
        "best_epoch": outcome["best_epoch"] + 1,
        "comm_share": (figures["comm_seconds"] or 0.0) / seconds if seconds else None,
        "throughput": 1 / seconds if seconds else None,
        "max_age": max(epoch["max_age"] for epoch in epochs),
        "history_mb": max(outcome["history_bytes"]) / 1e6,
        "history_share": max(
            h / p for h, p in zip(outcome["history_bytes"], outcome["peak_bytes"], strict=True)
        ),
        "peak_mb": max(outcome["peak_bytes"]) / 1e6,
        **_byte_figures(epochs, later, bill, outcome["link_bytes"]),
        **_send_figures(bill),
        **_split(later, seconds),
        **_pipeline(later, outcome.get("schedule", {})),
    }


def _byte_figures(
    epochs: Sequence[Mapping[str, Any]],
    later: Sequence[Mapping[str, Any]],
    bill: Mapping[str, Any],
    link_bytes: Sequence[int],
) -> Values:
    """Megabytes an epoch: all that training sends, and its payload apart."""
    payload, boundary, agreement, parameters = (_mean(later, name) for name in BILLED_BYTES)
    counted_bytes = [sum(epoch[name] for name in COUNTED_BYTES) for epoch in later]
    links = link_bytes[-len(later) :]
    return {
        "all_mb": (payload + boundary + agreement + parameters) / 1e6,
        "mean_mb": sum(_mean(epochs, name) for name in BILLED_BYTES) / 1e6,
        "wire_mb": payload / 1e6,
        "boundary_mb": boundary / 1e6,
        "other_mb": (agreement + parameters) / 1e6,
        "first_mb": epochs[0]["wire_bytes"] / 1e6,
        "forward_mb": _forward(bill, "wire_bytes") / len(epochs) / 1e6,
        "link_mb": sum(links) / len(later) / 1e6 if any(links) else None,
        "link_ratio": sum(links) / sum(counted_bytes) if any(links) and sum(counted_bytes) else None,
    }


def _send_figures(bill: Mapping[str, Any]) -> Values:
    """Which share of the embeddings was sent; those of hidden layers apart, since features never change."""
    figures: Values = {}
    for name, first in (("skipped_share", 0), ("hidden_skipped", 1)):
        sends, skips = (_forward(bill, what, first) for what in ("sends", "skips"))
        figures[name] = skips / (sends + skips) if sends + skips else None
    skipped = figures["skipped_share"]
    return figures | {"sent_share": None if skipped is None else 1 - skipped}


def _split(epochs: Sequence[Mapping[str, Any]], seconds: float) -> Values:
    """What an epoch is spent on, as shares of it (SuperGCN's breakdown); where a run measured it."""
    return {
        share: _mean(epochs, name) / seconds if seconds and name in epochs[0] else None
        for share, name in SPLIT.items()
    }


def _pipeline(epochs: Sequence[Mapping[str, Any]], schedule: Mapping[str, Any]) -> Values:
    """What only a pipeline of layers measures."""
    if "bubble_formula" not in schedule:
        return {}
    shares = {"stale_share": _mean(epochs, "stale_share"), "bubble": _mean(epochs, "bubble_share")}
    return shares | {"bubble_formula": schedule["bubble_formula"]}


def columns_text(widths: Mapping[str, Mapping[str, int]]) -> str:
    """`602, 64 / 64, 41`: the columns of every layer's payload that crosses, forward and backward."""
    sides = (widths.get(side, {}) for side in ("forward", "backward"))
    return " / ".join(
        ", ".join(str(side[layer]) for layer in sorted(side, key=int)) or "none" for side in sides
    )


def relative_figures(
    outcome: Outcome, own: Values, base_outcome: Outcome, base: Values, tolerance: float
) -> Values:
    """The figures of one case relative to the baseline of the same repeat."""
    target = base_outcome["val"] - tolerance
    mine, its = (_reach(one["epochs"], target) for one in (outcome, base_outcome))
    assert its is not None, "the baseline reaches its own score"
    return {
        "points": _minus(own["test"], base["test"]),
        "speedup": _ratio(base["seconds"], own["seconds"]),
        "compute_ratio": _ratio(own["compute_seconds"], base["comm_seconds"]),
        "comm_ratio": _ratio(own["comm_seconds"], base["comm_seconds"]),
        "all_share": _ratio(own["all_mb"], base["all_mb"]),
        "fewer": _ratio(base["all_mb"], own["all_mb"]),
        "mean_fewer": _ratio(base["mean_mb"], own["mean_mb"]),
        "wire_share": _ratio(own["wire_mb"], base["wire_mb"]),
        "payload_fewer": _ratio(base["wire_mb"], own["wire_mb"]),
        "forward_share": _ratio(own["forward_mb"], base["forward_mb"]),
        "target": target,
        "epochs_to_target": mine[0] if mine else None,
        "seconds_to_target": mine[1] if mine else None,
        "sooner": _ratio(its[1], mine[1]) if mine else None,
    }


EPOCH_TIMES = ("seconds", "compute_seconds", "comm_seconds", "agreement_seconds", "hidden_seconds")
SPLIT = {
    "aggregation_share": "aggregation_seconds",
    "dense_share": "dense_seconds",
    "codec_share": "codec_seconds",
    "transfer_share": "transfer_seconds",
    "waiting_share": "waiting_seconds",
    "agreement_share": "agreement_seconds",
    "other_share": "other_seconds",
}


def _reach(epochs: Sequence[Mapping[str, Any]], target: float) -> tuple[int, float] | None:
    """Epochs and training seconds, those of setting up included, until validation reached the target."""
    seconds = 0.0
    for epoch in epochs:
        seconds += epoch["seconds"]
        if epoch["val"] is not None and epoch["val"] >= target:
            return epoch["epoch"] + 1, seconds
    return None


def _mean(epochs: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(epoch[name] for epoch in epochs)


def _forward(bill: Mapping[str, Any], name: str, first: int = 0) -> int:
    """A figure of the embeddings' streams of layer `first` and those after it, over all epochs."""
    streams = (stream for stream in bill["streams"] if stream["layer"] >= first)
    return sum(stream[name] for stream in streams if stream["direction"] == "forward")


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _minus(value: float | None, other: float | None) -> float | None:
    return value - other if value is not None and other is not None else None
