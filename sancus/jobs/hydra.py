"""A script for mpiexec of MPICH (Hydra), which reaches the hosts by ssh."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sancus.errors import UserError
from sancus.jobs.job import Job, check_hosts


@dataclass(frozen=True)
class Hydra:
    """Settings of mpiexec; without hosts everything is on this one."""

    hosts: tuple[str, ...] = ()

    @property
    def usual_out(self) -> str | None:
        """A new folder for every start."""
        return None

    def script(self, job: Job) -> str:
        """The script."""
        if job.backend != "mpi":
            raise UserError(f"--backend {job.backend}: ranks of mpiexec talk by MPI; leave --backend out")
        if self.hosts or job.size.nodes > 1:
            check_hosts(self.hosts, job.size.nodes)
        names = ",".join(self.hosts)
        where = f" -hosts {shlex.quote(names)} -ppn {job.size.ranks_per_node}" if self.hosts else ""
        ready = [job.enter(), *job.environment()]
        start = f"exec mpiexec -n {job.size.ranks}{where} {job.train()}"
        return "\n".join(["#!/bin/bash", "set -euo pipefail", *ready, start, ""])

    def submit(self) -> list[str]:
        """A shell of this host reads the script."""
        return ["bash"]
