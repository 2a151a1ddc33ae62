"""The verb `tune`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sancus.cli.command import run_verbs
from sancus.cli.printing import print_line, print_table
from sancus.cli.train import read_flags, train_alone
from sancus.cli.warm import warm_up
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.launch.process import fork_command


def tune(
    data: str,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ranks: int,
    out: Path | None = None,
    link: str = "10Gbit",
    latency: float = 50e-6,
    within: float = 0.5,
    objective: Literal["time", "bytes", "memory"] = "time",
    seeds: int = 3,
) -> None:
    """Find the cheapest settings for a graph, a number of ranks and a link, within a budget of accuracy.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, a file, a folder, or a name.
    flags
        Any flags of sancus train, for every run: --epochs 200 --hidden 256 ….
    ranks
        Number of ranks, of the runs here too.
    out
        Directory for all runs, tune.json and the report; a search that was stopped goes on there.
    link
        Speed of the network between ranks, e.g. 1Gbit or 120MB (a second).
    latency
        Seconds that a message takes beside its bytes.
    within
        Points of the validation score that the choice may be behind exact.
    objective
        What is to be least: time (of an epoch), bytes (of an epoch) or memory (of a rank).
    seeds
        Seeds 0, 1, … of the last runs; short ones have one.
    """
    from sancus.advise import estimate as estimating
    from sancus.advise.candidates import Candidate, candidates, reference
    from sancus.advise.costs import costs_of
    from sancus.advise.tune import Search, Tuning, Verdict, verdict_rows
    from sancus.datasets.open import check_source, open_graph
    from sancus.runs.check import check
    from sancus.runs.pages import make_report

    check_source(data)
    if out is None:
        raise UserError("--out is missing: the directory for all runs, and for going on")
    _refuse(flags, "--preset", "--seed", "--out", "--resume", "--ranks")
    _, usual = read_flags([data, *flags, *reference().words()])
    tuning = Tuning(out, usual.training.epochs, within, objective, seeds)
    machine = estimating.probe(link, latency, None, None)

    def config_of(candidate: Candidate) -> Config:
        _, settings = read_flags([data, *flags, *candidate.words()])
        check(data, settings, launched=True)
        return settings

    def run_train(candidate: Candidate, seed: int, epochs: int) -> int:
        warm_up()
        return fork_command(partial(run_verbs, train_alone()), words(candidate, seed, epochs))

    def words(candidate: Candidate, seed: int, epochs: int) -> list[str]:
        place = tuning.directory(candidate, seed)
        how = ["--ranks", str(ranks), "--seed", str(seed), "--out", str(place), "--resume", "auto"]
        return ["train", data, *others, *candidate.words(), *how, "--epochs", str(epochs), "--quiet"]

    others, graph = _without(flags, "--epochs"), open_graph(data)
    costs, left_out = costs_of([reference(), *candidates()], graph, config_of, ranks, machine)
    for candidate, reason in left_out.items():
        print_line(f"left out: {candidate.name}: {reason}")
    verdicts = {candidate.name: Verdict(candidate, cost) for candidate, cost in costs.items()}
    search = Search(tuning, verdicts, run_train, print_line)
    tuning.out.mkdir(parents=True, exist_ok=True)
    chosen = search.find()
    print_table(verdict_rows(search))
    compared = dict.fromkeys([reference(), chosen.candidate])  # one, where exact was chosen
    page = make_report([tuning.directory(one, 0) for one in compared], out / "report.html")
    line = ["sancus", "train", data, *flags, *chosen.candidate.words(), "--ranks", str(ranks)]
    print_line(f"files in {out}; open {page}; train with: {shlex.join(line)}")


def _refuse(flags: Sequence[str], *ours: str) -> None:
    """Refuse what a search sets itself."""
    for flag in flags:
        if flag.partition("=")[0] in ours:
            raise UserError(f"{flag}: sancus tune sets it itself; leave it out")


def _without(flags: Sequence[str], name: str) -> list[str]:
    """The flags but one and its value."""
    kept, skipped = list[str](), False
    for flag in flags:
        if not skipped and flag != name and not flag.startswith(f"{name}="):
            kept.append(flag)
        skipped = flag == name
    return kept
