"""Beside Sylvie Table 4."""

from __future__ import annotations

from experiments.engine.figures import FIGURES
from experiments.engine.measured import Measured
from experiments.engine.tables import render

form = FIGURES["points"].form


def text(measured: Measured) -> str:
    """Points that each way of quantising loses."""
    models = list(dict.fromkeys(method.partition(",")[0] for method in measured.labels("method")))
    rows = [["model", "data", "what crosses: points to fp32", "everything: points to fp32"]]
    worse = total = 0
    for model in models:
        for data in measured.labels("data"):
            base = measured.value("test", method=f"{model}, fp32", data=data)
            some = measured.value("test", method=f"{model}, Sylvie-S", data=data) - base
            everything = measured.value("test", method=f"{model}, everything", data=data) - base
            worse, total = worse + (everything < some), total + 1
            rows.append([model, data, form(some), form(everything)])
    return "\n\n".join(
        [
            "**Beside the paper.**",
            render(rows),
            f"Quantising everything is worse than quantising what crosses in {worse} of {total} cells (paper: in all), in the mean "
            f"of {measured.seeds} seeds after {measured.flag('epochs')} epochs; what crosses is "
            f"{measured.columns(method='GraphSAGE, Sylvie-S')} columns wide, every layer's input. Where a cell gains by noise, its "
            "training was not at its end.",
        ]
    )
