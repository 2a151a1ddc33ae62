"""The bill: what a run communicated, split by stream; the `communication` section of `run.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What `all_bytes` is the sum of.
ALL = ("wire_bytes", "boundary_bytes", "topology_bytes", "agreement_bytes", "parameter_bytes")
TOTALS = (
    "wire_bytes",
    "raw_bytes",
    "saved_bytes",
    "boundary_bytes",
    "topology_bytes",
    "agreement_bytes",
    "parameter_bytes",
    "raw_parameter_bytes",
    "sends",
    "skips",
)
OF_STREAM = ("wire_bytes", "raw_bytes", "saved_bytes", "sends", "skips")
ONCE = (
    "boundary_bytes",
    "topology_bytes",
    "agreement_bytes",
    "parameter_bytes",
    "raw_parameter_bytes",
    "evaluation_bytes",
    "probe_bytes",
)
StreamKey = tuple[int, str, int]


@dataclass
class Bill:
    """Sums over ranks and epochs; bills of consecutive processes of one run add up."""

    streams: dict[StreamKey, Counter[str]] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    matrix: Counter[tuple[int, int]] = field(default_factory=Counter)  # (owner, receiver) -> payload bytes

    def add_stream(self, key: StreamKey, figures: Mapping[str, int]) -> None:
        """Add figures of one stream (layer, direction, owner); their names are those of `OF_STREAM`."""
        self.streams.setdefault(key, Counter()).update(figures)
        self.totals.update(figures)

    def merge(self, other: Bill) -> None:
        """Add the bill of another process, for example of the one that this run resumes."""
        for key, figures in other.streams.items():
            self.streams.setdefault(key, Counter()).update(figures)
        self.totals.update(other.totals)
        self.matrix.update(other.matrix)

    def to_dict(
        self, epochs: int, ranks: int, means: Mapping[str, Mapping[StreamKey, float]] | None = None
    ) -> dict[str, Any]:
        """JSON-ready: per-epoch mean, total, streams, and payload bytes from owner to receiver.

        `all_bytes` is the figure of every claim: payloads, what stages hand on, parameters and agreement.
        `means` are further figures of streams, such as `codec_error`; None where nothing was measured.
        """
        total = {name: self.totals[name] for name in (*TOTALS, "evaluation_bytes", "probe_bytes")}
        total["all_bytes"] = sum(total[name] for name in ALL)
        return {
            "per_epoch": {name: total[name] / max(1, epochs) for name in (*TOTALS, "all_bytes")},
            "total": total,
            "streams": [
                {"layer": layer, "direction": direction, "owner": owner}
                | {name: figures[name] for name in OF_STREAM}
                | {name: values.get((layer, direction, owner)) for name, values in (means or {}).items()}
                for (layer, direction, owner), figures in sorted(self.streams.items(), key=_order)
            ],
            "payload_matrix": [
                [self.matrix[owner, receiver] for receiver in range(ranks)] for owner in range(ranks)
            ],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Bill:
        """The inverse of `to_dict`: the bill that an earlier process wrote."""
        bill = cls()
        for row in plain["streams"]:
            figures = {name: row[name] for name in OF_STREAM}
            bill.add_stream((row["layer"], row["direction"], row["owner"]), figures)
        total = plain["total"]
        # Of a version that had no codec for parameters, no stages, and counted topology as agreement.
        older = {"raw_parameter_bytes": total["parameter_bytes"], "boundary_bytes": 0, "topology_bytes": 0}
        for name in ONCE:
            bill.totals[name] += (older | total)[name]
        for owner, row in enumerate(plain["payload_matrix"]):
            bill.matrix.update({(owner, receiver): size for receiver, size in enumerate(row) if size})
        return bill


def join_ledgers(
    records: Iterable[Mapping[str, Any]], decision_counts: Mapping[StreamKey, tuple[int, int]]
) -> Bill:
    """One bill from every rank's ledger record and the decisions, which all ranks share.

    An owner is a part of the graph; `members` of a record says which process holds each part for its rank.
    """
    bill = Bill()
    for key, (sends, skips) in decision_counts.items():
        bill.add_stream(key, {"sends": sends, "skips": skips})
    for record in records:
        for layer, direction, owner, receiver, wire in record["payloads"]:
            bill.add_stream((layer, direction, owner), {"wire_bytes": wire})
            bill.matrix[record["members"][owner], receiver] += wire
        for name in ("raw", "saved"):
            for layer, direction, owner, size in record[name]:
                bill.add_stream((layer, direction, owner), {f"{name}_bytes": size})
        bill.totals.update(record["totals"])
    return bill


def _order(item: tuple[StreamKey, Counter[str]]) -> tuple[int, bool, int]:
    layer, direction, owner = item[0]
    return layer, direction == "backward", owner
