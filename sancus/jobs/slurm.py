"""A batch script for Slurm, which goes on by itself after its time limit, a preemption or a dead node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sancus.errors import UserError
from sancus.jobs.job import SAVED, WAIT_FOR, Job

TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")  # days-hours:minutes:seconds, and shorter


@dataclass(frozen=True)
class Slurm:
    """Settings of Slurm."""

    time: str = "04:00:00"
    grace: int = 120  # seconds before the limit
    mpi: Literal["pmi2", "pmix"] = "pmi2"  # how srun starts ranks of MPI
    options: tuple[str, ...] = ()  # further lines for sbatch: partition=gpu, account=abc, …

    def __post_init__(self) -> None:
        if not TIME.fullmatch(self.time):
            raise UserError(f"--time {self.time}: write it as Slurm does, e.g. 04:00:00 or 1-12:00:00")
        if not 1 <= self.grace <= 65535:
            raise UserError(f"--grace {self.grace}: must be from 1 to 65535 seconds")

    @property
    def usual_out(self) -> str:
        """By the job's number, which stays the same when it is queued again."""
        return "runs/sancus-$SLURM_JOB_ID"

    def script(self, job: Job) -> str:
        """The batch script.

        Before the limit Slurm signals this script alone (`B:`), which passes it on and then asks to be queued
        again: a run that was cancelled is not, though its ranks end in the same way.
        """
        flags = {
            "job-name": "sancus",
            "nodes": job.size.nodes,
            "ntasks-per-node": job.size.ranks_per_node,
            **({} if job.size.cpus is None else {"cpus-per-task": job.size.cpus}),
            "time": self.time,
            "signal": f"B:USR1@{self.grace}",
            "open-mode": "append",
            "chdir": job.place.folder,
        }
        head = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in flags.items())]
        head += ["#SBATCH --requeue", *(f"#SBATCH --{option.removeprefix('--')}" for option in self.options)]
        start = f"srun --mpi={self.mpi}" if job.backend == "mpi" else "srun"
        return "\n".join(
            [*head, "set -euo pipefail", *job.environment(), *self._meeting(job), "", *_RUN]
        ).replace("COMMAND", f"{start} {job.train()}")

    def _meeting(self, job: Job) -> list[str]:
        """Where ranks of torch.distributed meet: at the first host, at a port of this job."""
        if job.backend == "mpi":
            return []
        return [
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            "export MASTER_ADDR MASTER_PORT",
        ]

    def submit(self) -> list[str]:
        """`sbatch` reads the script."""
        return ["sbatch", "--parsable"]


_RUN = f"""\
{WAIT_FOR}
COMMAND &
ranks=$!
# USR1: the time is nearly over. All ranks write a checkpoint and end; the job is queued again, and goes on.
again= code=0
trap 'heard=yes again=yes; kill -USR1 "$ranks"' USR1
wait_for "$ranks"
if [[ $again && $code == {SAVED} ]]; then
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
""".splitlines()
