"""A script that starts torchrun's agents on several hosts by a remote shell, and ends them with itself."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sancus.errors import UserError
from sancus.jobs.job import WAIT_FOR, Job, check_hosts


@dataclass(frozen=True)
class Torchrun:
    """Settings of torchrun; without hosts everything is on this one."""

    hosts: tuple[str, ...] = ()
    port: int = 29400  # of the first host

    def __post_init__(self) -> None:
        if not 0 < self.port < 2**16:
            raise UserError(f"--port {self.port}: must be from 1 to 65535")

    @property
    def usual_out(self) -> str | None:
        """A new folder for every start."""
        return None

    def script(self, job: Job) -> str:
        """The script; `REMOTE_SHELL` is what reaches a host, `ssh` where it is not set."""
        size = f"--nproc-per-node {job.size.ranks_per_node}"
        more = f" --max-restarts {job.restarts}" if job.restarts else ""
        program = f"{size}{more} -m {job.train()}"
        head = ["#!/bin/bash", "set -euo pipefail"]
        ready = [job.enter(), *job.environment()]
        if job.size.nodes == 1 and not self.hosts:
            return "\n".join([*head, *ready, f"exec torchrun --standalone {program}", ""])
        if job.backend != "gloo" and job.backend != "nccl":
            raise UserError(f"--backend {job.backend}: torchrun's ranks talk by gloo; see sancus launch mpi")
        check_hosts(self.hosts, job.size.nodes)
        first = self.hosts[0]
        endpoint = f"[{first}]:{self.port}" if ":" in first else f"{first}:{self.port}"
        meeting = f"--nnodes {job.size.nodes} --rdzv-backend c10d --rdzv-endpoint {shlex.quote(endpoint)}"
        here = '--rdzv-id "$id" --rdzv-conf "is_host=$first" --local-addr "$host"'
        agent = [*ready, f"torchrun {meeting} {here} {program} &"]
        return "\n".join(
            [
                *head,
                f"hosts=({' '.join(map(shlex.quote, self.hosts))})",
                "",
                "# What runs on every host, with host, first and id before it.",
                "read -r -d '' agent <<'END' || true",
                *agent,
                *_WATCH.splitlines(),
                "END",
                *_START.splitlines(),
                "",
            ]
        )

    def submit(self) -> list[str]:
        """A shell of this host reads the script."""
        return ["bash"]


# On every host: its standard input is open as long as the script lives that has started it.
_WATCH = """\
pid=$!
{ cat; kill -TERM "$pid"; } <&3 > /dev/null 2>&1 3<&- &
watch=$!
code=0
wait "$pid" || code=$?
kill "$watch" 2> /dev/null || true
exit "$code\""""

_START = f"""
# The agents read from a pipe that this script holds open: they end, and save the work, when it ends.
{WAIT_FOR}
alive=$(mktemp -u)
mkfifo -m 600 "$alive"
exec {{hold}}<> "$alive"
exec {{ear}}< "$alive"
rm "$alive"
trap 'heard=yes; exec {{hold}}>&-' INT TERM HUP USR1
agents=()
first=true
for host in "${{hosts[@]}}"; do
  line="exec 3<&0; set -eu; host='$host'; first=$first; id=sancus-$$
$agent"
  ${{REMOTE_SHELL:-ssh}} "$host" "$line" <&"$ear" {{hold}}>&- {{ear}}<&- &
  agents+=($!)
  first=false
done
exec {{ear}}<&-
worst=0
for agent in "${{agents[@]}}"; do
  wait_for "$agent"
  ((worst)) || worst=$code
done
exit "$worst\""""
