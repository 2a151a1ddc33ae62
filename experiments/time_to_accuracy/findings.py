"""What time to accuracy shows."""

from __future__ import annotations

from experiments.engine.measured import Measured
from experiments.engine.tables import cell, render

LINK = "1 Gbit/s"
PROMISES = {"lean": 15.0, "exact": 5.0, "sancus-h:1": 1.34}


def graphs(measured: Measured) -> list[str]:
    """The graphs over the link of the promise."""
    return [graph for graph in measured.labels("graph") if graph.endswith(LINK)]


def text(measured: Measured) -> str:
    """Which promise holds where."""
    rows = [["promise", "kept on", "not kept on"]]
    for preset, least in PROMISES.items():
        kept, missed = [], []
        for graph in graphs(measured):
            cases = measured.cases(graph=graph, preset=preset)
            times = [case["figures"]["sooner"] for case in cases]
            good = None not in times and measured.value("sooner", graph=graph, preset=preset) >= least
            shown = f"{graph.removesuffix(', ' + LINK)} {cell(cases, 'sooner')}"
            (kept if good else missed).append(shown)
        rows.append(
            [f"`{preset}`: {least:g} × sooner", "; ".join(kept) or "none", "; ".join(missed) or "none"]
        )
    fast = "cora, 10 Gbit/s"
    slow = "cora, 1 Gbit/s"
    return "\n\n".join(
        [
            f"**What holds over {LINK}.**",
            render(rows),
            f"Over 10 Gbit/s everything gains less: on cora `exact` {cell(measured.cases(graph=slow, preset='exact'), 'sooner')} → "
            f"{cell(measured.cases(graph=fast, preset='exact'), 'sooner')}, `lean` {cell(measured.cases(graph=slow, preset='lean'), 'sooner')} → "
            f"{cell(measured.cases(graph=fast, preset='lean'), 'sooner')}. The savings that change no number bring most of it. What bounds "
            "`lean`: four ranks share two cores, so computation, which nothing here avoids, is most of its epoch "
            f"(`compute` {measured.span('compute_seconds', preset='lean')} s of {measured.span('seconds', preset='lean')} s), and the sum of the "
            "gradients of the weights, which no codec of ours touches, is most of its bytes "
            f"({measured.span('all_mb', preset='lean')} MB an epoch in all, {measured.span('wire_mb', preset='lean')} MB payload). The hidden "
            f"embeddings that `sancus-h:1` skips: {measured.span('hidden_skipped', preset='sancus-h:1')}. The target is a validation score; "
            "test accuracy stands beside it.",
        ]
    )


def page(measured: Measured) -> str:
    """The table of docs/results.md."""
    presets = [preset for preset in measured.labels("preset") if preset != "cagnet"]
    rows = [["graph", "`cagnet`", *(f"`{preset}`" for preset in presets)]]
    for graph in graphs(measured):
        seconds = f"{cell(measured.cases(graph=graph, preset='cagnet'), 'seconds_to_target')} s"
        cells = [cell(measured.cases(graph=graph, preset=preset), "sooner") for preset in presets]
        rows.append([graph.removesuffix(", " + LINK), seconds, *cells])
    return "\n\n".join(
        [
            f"Training seconds of a GCN, {measured.flag('hidden')} hidden columns, on {measured.content['cases'][0]['ranks']} ranks over links "
            f"of {LINK} until it is within half a point of the best validation score of `cagnet`: seconds of `cagnet`, then how many times sooner "
            f"the others are there (medians of {measured.seeds} seeds, least to most; {measured.machine}; `{measured.content['command']}`). Other links, bytes, and what bounds "
            "it: [experiments/time_to_accuracy](../experiments/time_to_accuracy/README.md).",
            render(rows),
        ]
    )
