"""The figures of a case: every number that a table may show, each computed in one place, with its unit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Outcome = Mapping[str, Any]
COUNTED_BYTES = ("wire_bytes", "agreement_bytes", "parameter_bytes", "evaluation_bytes")
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
    return f"{value:+.1f}"


FIGURES: dict[str, Figure] = {
    "test": Figure("test %", _fixed(1), statistics.fmean),
    "points": Figure("points to baseline", _signed, statistics.fmean),
    "seconds": Figure("epoch, s", _seconds),
    "compute_seconds": Figure("compute, s", _seconds),
    "comm_seconds": Figure("communicate, s", _seconds),
    "agreement_seconds": Figure("agree, s", _seconds),
    "hidden_seconds": Figure("hidden, s", _seconds),
    "comm_share": Figure("communicate, share", _share),
    "comm_ratio": Figure("communicate to baseline", _share),
    "throughput": Figure("epochs/s", _seconds),
    "speedup": Figure("epoch sooner", _times),
    "wire_mb": Figure("payload MB/epoch", _megabytes),
    "forward_mb": Figure("forward MB/epoch", _megabytes),
    "first_mb": Figure("payload MB, first epoch", _megabytes),
    "wire_share": Figure("payload to baseline", _share),
    "forward_share": Figure("forward to baseline", _share),
    "fewer": Figure("fewer bytes", _times),
    "other_mb": Figure("agreement + parameter MB/epoch", _megabytes),
    "link_mb": Figure("link MB/epoch", _megabytes),
    "link_ratio": Figure("link / counted", _fixed(3)),
    "sent_share": Figure("embeddings sent", _share),
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

    Times and payloads are means over the epochs but the first, which sets up (`first_seconds`, `first_mb`):
    where a policy sends in every second epoch, a median would show one of two kinds of epochs.
    """
    epochs, bill = outcome["epochs"], outcome["communication"]
    count, later = len(epochs), epochs[1:] or epochs
    figures: Values = {name: _mean(later, name) for name in EPOCH_TIMES}
    counted_bytes = [sum(epoch[name] for name in COUNTED_BYTES) for epoch in later]
    links = outcome["link_bytes"][-len(later) :]
    sends, skips = (_forward(bill, name) for name in ("sends", "skips"))
    seconds = figures["seconds"] or 0.0
    return figures | {
        "first_seconds": epochs[0]["seconds"],
        "test": 100 * outcome["test"],
        "val": outcome["val"],
        "best_epoch": outcome["best_epoch"] + 1,
        "comm_share": (figures["comm_seconds"] or 0.0) / seconds if seconds else None,
        "throughput": 1 / seconds if seconds else None,
        "first_mb": epochs[0]["wire_bytes"] / 1e6,
        "wire_mb": _mean(later, "wire_bytes") / 1e6,
        "forward_mb": _forward(bill, "wire_bytes") / count / 1e6,
        "other_mb": (bill["per_epoch"]["agreement_bytes"] + bill["per_epoch"]["parameter_bytes"]) / 1e6,
        "link_mb": sum(links) / len(later) / 1e6 if any(links) else None,
        "link_ratio": sum(links) / sum(counted_bytes) if any(links) and sum(counted_bytes) else None,
        "sent_share": sends / (sends + skips) if sends + skips else None,
        "max_age": max(epoch["max_age"] for epoch in epochs),
        "history_mb": max(outcome["history_bytes"]) / 1e6,
        "history_share": max(
            h / p for h, p in zip(outcome["history_bytes"], outcome["peak_bytes"], strict=True)
        ),
        "peak_mb": max(outcome["peak_bytes"]) / 1e6,
    }


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
        "comm_ratio": _ratio(own["comm_seconds"], base["comm_seconds"]),
        "wire_share": _ratio(own["wire_mb"], base["wire_mb"]),
        "forward_share": _ratio(own["forward_mb"], base["forward_mb"]),
        "fewer": _ratio(base["wire_mb"], own["wire_mb"]),
        "target": target,
        "epochs_to_target": mine[0] if mine else None,
        "seconds_to_target": mine[1] if mine else None,
        "sooner": _ratio(its[1], mine[1]) if mine else None,
    }


EPOCH_TIMES = ("seconds", "compute_seconds", "comm_seconds", "agreement_seconds", "hidden_seconds")


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


def _forward(bill: Mapping[str, Any], name: str) -> int:
    """A figure of the embeddings' streams, over all epochs."""
    return sum(stream[name] for stream in bill["streams"] if stream["direction"] == "forward")


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _minus(value: float | None, other: float | None) -> float | None:
    return value - other if value is not None and other is not None else None
