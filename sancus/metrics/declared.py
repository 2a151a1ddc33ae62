"""The figures of an epoch: name, unit, meaning, and how ranks combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One figure of `metrics.jsonl`."""

    name: str
    unit: str
    meaning: str
    over_ranks: Literal["same", "sum", "max", "mean"]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("epoch", "", "number of the epoch, from 0", "same"),
        Metric("loss", "", "training loss over all training nodes", "sum"),
        Metric("train", "share", "score on the training nodes, fresh and exact; null where undefined", "sum"),
        Metric("val", "share", "score on the validation nodes, fresh and exact; null where undefined", "sum"),
        Metric("test", "share", "score on the test nodes, fresh and exact; null where undefined", "sum"),
        Metric("seconds", "s", "time of the training epoch, without evaluation; slowest rank", "max"),
        Metric("aggregation_seconds", "s", "part of it in sparse products and attention; mean", "mean"),
        Metric("dense_seconds", "s", "part of it in the rest of the model, both ways; mean", "mean"),
        Metric("codec_seconds", "s", "part of it in encoding and decoding payloads; mean", "mean"),
        Metric("transfer_seconds", "s", "part of it in moving payloads and parameters; least rank", "mean"),
        Metric("waiting_seconds", "s", "part of it in messages, above the least rank's; mean", "mean"),
        Metric("agreement_seconds", "s", "part of it in agreeing, without waiting; least rank", "mean"),
        Metric("other_seconds", "s", "what is left of it: histories, checks, optimiser, skew", "mean"),
        Metric("compute_seconds", "s", "part of it that is not communication; mean of the ranks", "mean"),
        Metric("comm_seconds", "s", "part of it spent in the transport, waiting included; mean", "mean"),
        Metric("hidden_seconds", "s", "in which payloads travelled behind other work; mean", "mean"),
        Metric("wire_bytes", "B", "payload bytes handed to the transport, once per receiver", "sum"),
        Metric("raw_bytes", "B", "the same payloads before the codec", "sum"),
        Metric("saved_bytes", "B", "wire bytes of payloads that were skipped", "sum"),
        Metric("boundary_bytes", "B", "bytes that stages of a pipeline hand on, both ways", "sum"),
        Metric("topology_bytes", "B", "bytes of edges of the graph, and of requests for them", "sum"),
        Metric("agreement_bytes", "B", "bytes by which ranks agree: records and figures", "sum"),
        Metric("parameter_bytes", "B", "bytes of the sum of the parameters' gradients", "sum"),
        Metric("raw_parameter_bytes", "B", "the same sum before the codec", "sum"),
        Metric("evaluation_bytes", "B", "payload bytes of the exact evaluation, not part of the bill", "sum"),
        Metric("sends", "", "owners' payloads sent, over all streams", "same"),
        Metric("skips", "", "owners' payloads skipped, over all streams", "same"),
        Metric("max_age", "epochs", "age of the oldest history that was used", "max"),
        Metric("max_drift", "", "largest drift that an owner measured; null where none was", "max"),
        Metric("codec_error", "", "largest relative error of a stream's payload; null where none", "max"),
        Metric("codec_noise", "", "such errors over what training was seen to stand; null where none", "max"),
        Metric("history_bytes", "B", "memory held by histories, all ranks", "sum"),
    )
}
