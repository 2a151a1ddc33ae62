"""What `docs/faults.md` says of chaos, from recorded trials: `python -m tests.chaos.table LINES DOC`.

A seed that was tried more than once counts as it was the last time.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.table import put_between, where_and_when

BEGIN, END = "<!-- begin: make chaos -->", "<!-- end: make chaos -->"
HEAD = ["| disturbance | drawn | met a run | ended as if nothing had been |", "|---|---|---|---|"]


def summary(lines: list[str]) -> list[str]:
    """Sentences and a table, for the trials of all lines."""
    last = {report["seed"]: report for report in map(json.loads, lines)}
    trials = [last[seed] for seed in sorted(last)]
    conducted = [trial for trial in trials if trial["outcome"] in ("same", "failed")]
    outcomes = Counter(trial["outcome"] for trial in trials)
    failed = [str(trial["seed"]) for trial in trials if trial["outcome"] == "failed"]
    on = Counter(f"{trial['ranks']} × {trial['backend']}" for trial in conducted)
    seconds = sum(trial["processor_seconds"] for trial in trials)
    seeds = _spans([trial["seed"] for trial in trials])
    again = f" (seeds {', '.join(failed)})" if failed else ""
    said = (
        f"{len(trials)} trials, seeds {seeds}: **{outcomes['same']} the same bit for bit, "
        f"{outcomes['failed']} not**{again}, {outcomes['refused']} refused by settings, "
        f"{outcomes['unavailable']} not possible on this machine. Ranks and transports: "
        f"{', '.join(f'{how} ({count})' for how, count in sorted(on.items()))}. "
        f"{seconds:,.0f} processor seconds."
    )
    return [said, "", *HEAD, *_rows(conducted)]


def _rows(trials: list[dict[str, Any]]) -> list[str]:
    """One row a disturbance."""
    drawn, met, well = Counter[str](), Counter[str](), Counter[str]()
    for trial in trials:
        for name, reached in trial["disturbances"]:
            drawn[name] += 1
            met[name] += reached
            well[name] += trial["outcome"] == "same"
    return [f"| {name} | {drawn[name]} | {met[name]} | {well[name]} |" for name in sorted(drawn)]


def _spans(seeds: list[int]) -> str:
    """`1-20, 25`: whole numbers in order, runs of them as their ends."""
    spans: list[list[int]] = []
    for seed in seeds:
        if spans and spans[-1][1] == seed - 1:
            spans[-1][1] = seed
        else:
            spans.append([seed, seed])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    put_between(Path(sys.argv[2]), BEGIN, END, [where_and_when("make chaos"), "", *summary(lines)])
