"""Beside Sylvie Figure 8."""

from __future__ import annotations

from experiments.engine.measured import Measured


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    methods = ["Sylvie-S", "Sylvie-A, S = 2", "Sylvie-A, S = 5", "Sylvie-A"]
    lines = []
    ordered = 0
    for data in measured.labels("data"):
        points = [measured.value("points", data=data, method=method) for method in methods]
        ordered += points == sorted(points, reverse=True)
        shown = ", ".join(measured.show("points", data=data, method=method) for method in methods)
        lines.append(f"{data}: {shown}")
    total = len(measured.labels("data"))
    return (
        "**Beside the paper.** Points to the synchronous run in full precision, of Sylvie-S and of Sylvie-A with every second, every "
        f"fifth and no epoch synchronous: {'; '.join(lines)} (means of {measured.seeds} seeds). The paper's order, the more often "
        f"synchronous the closer, holds on {ordered} of {total} graphs to the digit shown; mind the spread of the seeds. `epochs to "
        "target` has a dash where a run did not come within one point."
    )
