"""Runs the cases of an experiment: one group of ranks a place, case after case; collects what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from experiments.engine.experiment import NO_LINK, Case, Experiment, Place
from experiments.network.hosts import Network
from experiments.network.launch import Launcher, run_ranks
from sancus.config.resolve import make_config
from sancus.errors import UserError
from sancus.launch.process import follow_parent
from sancus.launch.world import cores
from sancus.runs.directory import write_json
from sancus.runs.layout import chunks_needed, parts_needed
from sancus.shards.cache import prepare

TIMEOUT = 300.0  # seconds of one collective; slow links are slow
Outcome = dict[str, Any]


def run(experiment: Experiment, say: Callable[[str], None], folder: Path | None = None) -> list[Outcome]:
    """Train every case; what was measured, in the order of the cases.

    What is in `folder` already is not trained again, so that an experiment which was stopped goes on there.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sancus-experiment-")))
        folder.mkdir(parents=True, exist_ok=True)
        outs = [_place_of(case, folder) for case in experiment.cases]
        places: dict[Place, list[int]] = {}
        for number, case in enumerate(experiment.cases):
            if not _complete(outs[number], case.place.ranks):
                places.setdefault(case.place, []).append(number)
        for place, numbers in places.items():
            over = "over loopback" if place.link == NO_LINK else f"over links of {place.link}"
            say(f"{experiment.name}: {len(numbers)} cases, {place.ranks} ranks {over}")
            _run_group(place, [(experiment.cases[number], outs[number]) for number in numbers], folder)
        return [_merge(out, case.place.ranks) for out, case in zip(outs, experiment.cases, strict=True)]


def _place_of(case: Case, folder: Path) -> str:
    """Where a case leaves its files: named by all that it is."""
    identity = f"{case.command()} {case.place}"
    return str(folder / f"case-{xxhash.xxh3_64_hexdigest(identity.encode())}")


def _complete(out: str, ranks: int) -> bool:
    return all(Path(f"{out}.rank{rank}.json").exists() for rank in range(ranks))


def _run_group(place: Place, cases: Sequence[tuple[Case, str]], folder: Path) -> None:
    jobs = []
    for case, out in cases:
        config = make_config(**case.flags)
        factors = config.factors
        parts, chunks = parts_needed(config, place.ranks), chunks_needed(config, place.ranks)
        cut = (factors.partitioner, parts, factors.row_order)
        shards = prepare(case.data, *cut, chunks=chunks).directory
        name = " ".join(case.labels.values())
        linked = place.link != NO_LINK
        jobs.append({"name": name, "flags": case.flags, "shards": str(shards), "out": out, "linked": linked})
    work = folder / "jobs.json"
    write_json(work, {"jobs": jobs, "threads": max(1, cores() // place.ranks), "timeout": TIMEOUT})
    program, log = ["-m", "experiments.engine.rank", str(work)], folder / "log"
    log.write_bytes(b"")
    code = _start(place, program, log)
    if code:
        lines = log.read_text(errors="replace").splitlines()
        raise UserError(
            "\n".join([f"ranks ended with exit code {code}; the end of what they said:", *lines[-25:]])
        )


def _start(place: Place, program: Sequence[str], log: Path) -> int:
    env = {"OMP_NUM_THREADS": str(max(1, cores() // place.ranks))}
    launcher: Launcher = "torchrun" if place.launcher == "torchrun" else "mpiexec"
    if place.link != NO_LINK:
        with Network(place.ranks, place.link) as network:
            return run_ranks(network, program, launcher, env=env, log=log)
    return _start_here(place, launcher, program, env, log)


def _start_here(
    place: Place, launcher: Launcher, program: Sequence[str], env: Mapping[str, str], log: Path
) -> int:
    """All ranks on this host, without a network of their own."""
    if launcher == "mpiexec":
        start = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(place.ranks), sys.executable]
    else:
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        start = [sys.executable, "-m", "torch.distributed.run", *meeting]
        start += ["--nproc-per-node", str(place.ranks)]
    with log.open("ab") as output:
        return subprocess.run(
            [*start, *program],
            env=dict(os.environ) | dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=follow_parent,
            check=False,
        ).returncode


def _merge(out: str, ranks: int) -> Outcome:
    """The outcome of a case: rank 0's file, with lists of what every rank measured by itself."""
    every = [json.loads(Path(f"{out}.rank{rank}.json").read_text()) for rank in range(ranks)]
    outcome: Outcome = dict(every[0])
    outcome["link_bytes"] = [sum(epoch) for epoch in zip(*(one["link_bytes"] for one in every), strict=True)]
    for name in ("history_bytes", "peak_bytes"):
        outcome[name] = [one[name] for one in every]
    sides = ("forward", "backward")  # a rank whose rows nobody needs sends nothing
    outcome["widths"] = {
        side: {layer: width for one in every for layer, width in one["widths"][side].items()}
        for side in sides
    }
    return outcome
