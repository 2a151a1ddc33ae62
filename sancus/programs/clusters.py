"""`sancus.job`: a job script for several hosts, from a program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sancus.cli.launch import JobFlags, make_script
from sancus.errors import UserError
from sancus.jobs.hydra import Hydra
from sancus.jobs.job import JobScript
from sancus.jobs.kubernetes import Kubernetes
from sancus.jobs.slurm import Slurm
from sancus.jobs.torchrun import Torchrun
from sancus.plugins import choices

LAUNCHERS: dict[str, Any] = {"slurm": Slurm, "torchrun": Torchrun, "mpi": Hydra, "kubernetes": Kubernetes}
HANDED_OUT = ("script", "submit")  # what a caller does with the script


def job(kind: str, graph: str | Path, ranks: int, nodes: int = 1, **settings: Any) -> JobScript:
    """A complete job script for `kind` (slurm, torchrun, mpi, kubernetes). As `sancus launch`.

        script = sancus.job("slurm", "shards", ranks=4, nodes=2, time="01:00:00", preset="lean", epochs=500)
        print(script.text)
        script.submit()

    `settings` are those of the kind (`hosts`, `time`, `image`, …), of the hosts (`cpus`, `setup`), and any
    flags of `sancus train`, with underscores.
    """
    if kind not in LAUNCHERS:
        raise UserError(f"job {kind!r} does not exist; choose from {choices(LAUNCHERS, kind)}")
    launcher = LAUNCHERS[kind]
    of_kind = _take(settings, launcher)
    of_hosts = {name: value for name, value in _take(settings, JobFlags).items() if name not in HANDED_OUT}
    words = [word for name, value in settings.items() for word in _words(name, value)]
    try:
        made = launcher(**{name: _frozen(value) for name, value in of_kind.items()})
    except TypeError as error:
        raise UserError(f"job {kind!r}: {str(error).partition(' ')[2]}") from None
    return make_script(made, str(graph), words, JobFlags(ranks=ranks, nodes=nodes, **of_hosts))


def _take(settings: dict[str, Any], owner: Any) -> dict[str, Any]:
    """Take out of `settings` what is a field of `owner`."""
    names = [item.name for item in dataclasses.fields(owner) if item.name in settings]
    return {name: settings.pop(name) for name in names}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _words(name: str, value: Any) -> list[str]:
    """A keyword as a flag of the command line; None leaves it out."""
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]
