"""Beside SuperGCN's table of accuracies."""

from __future__ import annotations

from experiments.engine.figures import FIGURES
from experiments.engine.measured import Measured, span

form = FIGURES["points"].form


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    quantised, labels, spreads = [], [], []
    for data in measured.labels("data"):
        for rate in measured.labels("labels"):
            quantised.append(_test(measured, data, "int2", rate) - _test(measured, data, "fp32", rate))
        for codec in measured.labels("codec"):
            labels.append(_test(measured, data, codec, "with") - _test(measured, data, codec, "without"))
            tests = [case["figures"]["test"] for case in measured.cases(data=data, codec=codec)]
            spreads.append(max(tests) - min(tests))
    return (
        f"**Beside the paper.** Int2, in which every layer's input and gradient crosses ({measured.columns(codec='int2')} "
        f"columns), is {_range(quantised)} points off fp32 with the same labels (paper: 0.3 points at most on Reddit and "
        f"ogbn-products; without labels 3.4 points lost on ogbn-papers100M). Labels as input bring {_range(labels)} points "
        f"(paper: up to 5.5). Means of {measured.seeds} seeds. All bytes with int2 are {measured.span('fewer', codec='int2')} fewer, the "
        f"payload {measured.span('payload_fewer', codec='int2')}. Seconds: an epoch with int2 runs at "
        f"{measured.span('speedup', codec='int2', labels='without')} the speed of fp32 without labels, with labels at "
        f"{measured.span('speedup', codec='int2', labels='with')} of it; there is no slow link in this run, so that a codec "
        "only takes time."
    )


def _test(measured: Measured, data: str, codec: str, labels: str) -> float:
    return measured.value("test", data=data, codec=codec, labels=labels)


def _range(values: list[float]) -> str:
    return span(form(min(values)), form(max(values)))
