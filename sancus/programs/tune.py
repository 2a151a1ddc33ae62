"""`sancus.tune`: the cheapest settings within a budget of accuracy, from a program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sancus.advise import estimate as estimating
from sancus.advise.candidates import Candidate, candidates, reference
from sancus.advise.costs import Objective, costs_of
from sancus.advise.tune import Search, Tuning, Verdict
from sancus.config.settings import Config
from sancus.config.types import check_number
from sancus.console.speaker import SILENT
from sancus.datasets.accept import accept
from sancus.errors import RankError, UserError
from sancus.launch.world import detect
from sancus.programs.settings import settings
from sancus.programs.train import train
from sancus.runs.check import check_settings

OURS = ("preset", "seed", "resume", "ranks")


@dataclass(frozen=True)
class Tuned:
    """What a search chose: settings for `train`, and what became of every candidate."""

    settings: Mapping[str, str]
    verdicts: tuple[Verdict, ...]


def tune(
    graph: Any,
    ranks: int,
    out: str | Path,
    *,
    link: str = "10Gbit",
    latency: float = 50e-6,
    within: float = 0.5,
    objective: Objective = "time",
    seeds: int = 3,
    **flags: Any,
) -> Tuned:
    """The cheapest settings whose validation score is within a budget of `exact`. As `sancus tune`.

    found = sancus.tune(graph, 4, "runs/tuned", link="1Gbit", epochs=200)
    sancus.train(graph, ranks=4, epochs=200, **found.settings)
    """
    if detect(os.environ) is not None:
        raise UserError("tune starts its own ranks; call it without torchrun or mpiexec")
    for name in OURS:
        if name in flags:
            raise UserError(f"{name}={flags[name]!r}: tune sets it itself; leave it out")
    check_number("ranks", ranks)
    usual = settings({**flags, **reference().settings})
    tuning = Tuning(Path(out), usual.training.epochs, within, objective, seeds)
    accepted, machine = accept(graph), estimating.probe(link, latency, None, None)

    def config_of(candidate: Candidate) -> Config:
        config = settings({**flags, **candidate.settings})
        check_settings(config, launched=True)
        return config

    def run(candidate: Candidate, seed: int, epochs: int) -> int:
        how = {"ranks": ranks, "seed": seed, "epochs": epochs, "quiet": True, "resume": "auto"}
        place = tuning.directory(candidate, seed)
        try:
            train(accepted, **{**flags, **candidate.settings, **how, "out": place})
        except RankError:
            return 1
        return 0

    costs, _ = costs_of([reference(), *candidates()], accepted, config_of, ranks, machine)
    verdicts = {candidate.name: Verdict(candidate, cost) for candidate, cost in costs.items()}
    tuning.out.mkdir(parents=True, exist_ok=True)
    chosen = Search(tuning, verdicts, run, SILENT if flags.get("quiet") else print).find()
    return Tuned(chosen.candidate.settings, tuple(verdicts.values()))
