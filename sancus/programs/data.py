"""`sancus.partition`, `estimate`, `probe` and `info`: what can be known before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sancus.advise import estimate as estimating
from sancus.advise.estimate import Estimate, Machine
from sancus.advise.estimate_batches import foresee
from sancus.advise.machine import measure
from sancus.comm.group import Group
from sancus.config.types import check_number
from sancus.console.speaker import speaker
from sancus.datasets.accept import accept
from sancus.datasets.info import facts_of, info_rows, oddities
from sancus.datasets.open import find_reader
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.graphs.row_order import RowOrder
from sancus.programs.settings import settings
from sancus.runs.check import check_settings
from sancus.shards import partition as parting


def partition(
    graph: Any,
    parts: int,
    out: str | Path,
    *,
    partitioner: str = "metis",
    overwrite: bool = False,
    row_order: RowOrder = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """Cut a graph into shards on disk, from which `train(out, ranks=parts)` trains; facts of the partition.

    As `sancus partition`. A rank's part for a loop of one's own is `sancus.api.partition`.
    """
    check_number("parts", parts)
    accepted = None if isinstance(graph, str | Path) else accept(graph)
    name = str(graph) if accepted is None else accepted.name
    given = {} if accepted is None else {"load": lambda: accepted}
    with closing(speaker(quiet=quiet)) as say:
        how = {"overwrite": overwrite, "row_order": row_order, **given}
        return parting.partition(name, partitioner, parts, Path(out), say, **how)  # type: ignore[arg-type]


def estimate(
    graph: Any,
    ranks: int | Sequence[int],
    *,
    link: str = "10Gbit",
    latency: float = 50e-6,
    spmm: float | None = None,
    gemm: float | None = None,
    **flags: Any,
) -> list[Estimate]:
    """What a run would need, for each number of ranks: memory, bytes and time. As `sancus estimate`."""
    counts = [ranks] if isinstance(ranks, int) else list(ranks)
    for count in counts:
        check_number("ranks", count)
    config = settings(None, **flags)
    check_settings(config, launched=True)
    if not math.isfinite(latency) or latency < 0:
        raise UserError(f"latency={latency}: must be a number of seconds that is not negative")
    accepted, machine = accept(graph), estimating.probe(link, latency, spmm, gemm)
    return [foresee(accepted, config, count, machine) for count in counts]


def probe(transport: Group, seconds: float = 10.0) -> Machine:
    """Speeds of the machine and of the link between these ranks, measured. As `sancus probe`.

    `transport` is what `sancus.join()` gave; every rank must call it, and gets the same.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise UserError(f"seconds={seconds}: must be a number above 0")
    return measure(transport, seconds)


@dataclass(frozen=True, repr=False)
class Info:
    """What a graph is like: rows of a name and a value, and what looks wrong with it."""

    rows: list[tuple[str, str]]
    oddities: list[str]

    def __repr__(self) -> str:
        width = max(len(name) for name, _ in self.rows)
        lines = [f"{name:{width}}  {value}" for name, value in self.rows]
        return "\n".join([*lines, *(f"looks wrong: {oddity}" for oddity in self.oddities)])


def info(graph: Any) -> Info:
    """What a graph is like, and what looks wrong with it. As `sancus data info`."""
    if isinstance(graph, str | Path):
        name, reader = find_reader(str(graph))
        loaded: Graph = reader.load()
    else:
        name, loaded = type(graph).__name__, accept(graph)
    facts = facts_of(loaded)
    return Info(info_rows(loaded, facts, name), oddities(loaded, facts))
