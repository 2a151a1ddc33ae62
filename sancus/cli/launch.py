"""The verb `launch`: a complete job script for several hosts, printed, written or submitted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from sancus.cli.printing import print_line
from sancus.cli.train import read_flags
from sancus.config.settings import Config
from sancus.jobs.hydra import Hydra
from sancus.jobs.job import Job, JobScript, Launcher, Place, Size
from sancus.jobs.kubernetes import Kubernetes
from sancus.jobs.slurm import Slurm
from sancus.jobs.torchrun import Torchrun
from sancus.runs.check import check, check_settings

Flags = Annotated[str, Parameter(allow_leading_hyphen=True)]
Words = Annotated[list[str], Parameter(consume_multiple=True)]
CHECKPOINT_EVERY = 20  # epochs


@Parameter(name="*")
@dataclass(frozen=True)
class JobFlags:
    """What every way to launch has."""

    ranks: int
    """Ranks of all nodes together; every node gets the same number."""
    nodes: int = 1
    """Hosts."""
    cpus: int | None = None
    """Cores a rank; default: its share of its host, or what the cluster gives."""
    setup: Annotated[list[str], Parameter(consume_multiple=True)] | None = None
    """Lines of the shell before the run: --setup "module load gcc" "export GLOO_SOCKET_IFNAME=ib0"."""
    script: Path | None = None
    """Write the script to this file, and print nothing."""
    submit: bool = False
    """Start it: by sbatch, bash or kubectl."""


def slurm(
    data: str,
    /,
    *flags: Flags,
    job: JobFlags,
    time: str = "04:00:00",
    grace: int = 120,
    mpi: Literal["pmi2", "pmix"] = "pmi2",
    options: Words | None = None,
) -> None:
    """A batch script for Slurm: it saves its work before the time is over, queues again, and goes on.

    Parameters
    ----------
    data
        Graph, or shards that sancus partition wrote, as every node sees it.
    flags
        Any flags of sancus train: --preset lean --epochs 500 ….
    job
        Ranks and hosts.
    time
        The time limit of one start, as Slurm writes it.
    grace
        Seconds before the limit at which the work is saved.
    mpi
        How srun starts ranks with --backend mpi.
    options
        Further options of sbatch: --options partition=long account=abc.
    """
    launcher = Slurm(time, grace, mpi, tuple(options or ()))
    _hand_out(make_script(launcher, data, flags, job), job)


def torchrun(
    data: str,
    /,
    *flags: Flags,
    job: JobFlags,
    hosts: Words | None = None,
    port: int = 29400,
) -> None:
    """A script that starts torchrun on every host by ssh, or on this one where no hosts are named.

    Parameters
    ----------
    data
        Graph, or shards that sancus partition wrote, as every host sees it.
    flags
        Any flags of sancus train; --restarts becomes torchrun's --max-restarts.
    job
        Ranks and hosts.
    hosts
        Names or addresses by which all hosts reach each other.
    port
        Where ranks meet, on the first host.
    """
    _hand_out(make_script(Torchrun(tuple(hosts or ()), port), data, flags, job), job)


def mpi(data: str, /, *flags: Flags, job: JobFlags, hosts: Words | None = None) -> None:
    """A script that starts ranks by mpiexec of MPICH, which reaches the hosts by ssh.

    Parameters
    ----------
    data
        Graph, or shards that sancus partition wrote, as every host sees it.
    flags
        Any flags of sancus train.
    job
        Ranks and hosts.
    hosts
        Names or addresses of the hosts; default: this one.
    """
    _hand_out(make_script(Hydra(tuple(hosts or ())), data, flags, job), job)


def kubernetes(
    data: str,
    /,
    *flags: Flags,
    job: JobFlags,
    image: str,
    claim: str,
    mount: str = "/work",
    memory: str = "16Gi",
    name: str = "sancus",
    retries: int = 3,
) -> None:
    """A manifest of an indexed Job for kubectl; no cluster has run it yet.

    Parameters
    ----------
    data
        Graph, or shards that sancus partition wrote, as pods see it.
    flags
        Any flags of sancus train.
    job
        Ranks, and pods as nodes.
    image
        Image of a container that has sancus.
    claim
        Claim of a volume that all pods mount, for the graph and the run's files.
    mount
        Where pods see that volume; relative paths start there.
    memory
        Memory of a pod.
    name
        Of the job and of its service.
    retries
        How often the job may fail, and go on from the last checkpoint.
    """
    launcher = Kubernetes(image, claim, mount, memory, name, retries)
    _hand_out(make_script(launcher, data, flags, job), job)


def launch_verbs() -> App:
    """The verb with its kinds."""
    app = App(name="launch", help="Write or submit a job script for several hosts.")
    for verb in (slurm, torchrun, mpi, kubernetes):
        app.command(verb)
    return app


def make_script(launcher: Launcher, data: str, flags: Sequence[str], job: JobFlags) -> JobScript:
    """The script that starts `sancus train data flags` there; what the run would refuse is refused here."""
    _, settings = read_flags([data, *flags])
    if isinstance(launcher, Kubernetes):
        check_settings(settings, launched=True)  # its graph is in a volume of the cluster
    else:
        check(data, settings, launched=True)
    command = Job(
        words=(data, *flags, *_added(settings, job.cpus)),
        size=Size(job.nodes, job.ranks, job.cpus),
        place=Place(Path.cwd(), Path(sys.executable).parent, tuple(job.setup or ())),
        backend=_backend(settings, mpi=isinstance(launcher, Hydra)),
        restarts=settings.launch.restarts,
    )
    named = settings.output.out is not None or settings.output.resume is not None
    usual = None if named else launcher.usual_out
    return JobScript(launcher.script(replace(command, usual_out=usual)), tuple(launcher.submit()))


def _backend(settings: Config, *, mpi: bool) -> str:
    if settings.factors.backend != "auto":
        return settings.factors.backend
    if settings.launch.device == "cuda":
        return "nccl"
    return "mpi" if mpi else "gloo"


def _added(settings: Config, cpus: int | None) -> list[str]:
    """Flags that a run on a cluster needs, and that nobody typed: threads, checkpoints, and to go on."""
    output, added = settings.output, list[str]()
    if cpus is not None and settings.launch.threads is None:
        added += ["--threads", str(cpus)]
    if not output.checkpoint_every:
        added += ["--checkpoint-every", str(CHECKPOINT_EVERY)]
    if output.out is not None and output.resume is None and not output.overwrite:
        added += ["--resume", "auto"]
    return added


def _hand_out(script: JobScript, job: JobFlags) -> None:
    """Print it, write it, start it, as the flags say."""
    if job.script is not None:
        script.write(job.script)
        print_line(f"wrote {job.script}")
    elif not job.submit:
        print_line(script.text.removesuffix("\n"))
    if job.submit:
        print_line(script.submit())
