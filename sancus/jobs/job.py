"""A run that is to be started on several hosts, and what every way to start it has in common."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sancus.errors import UserError

SAVED = 143  # how a run ends that a signal told to save its work
HOST = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*")

# For the shell: waits for a process, whose exit code is then in `code`. A signal that was `heard` only
# interrupts the wait.
WAIT_FOR = """\
wait_for() {
  local now
  while :; do
    heard= now=0
    wait "$1" || now=$?
    ((now == 127)) || code=$now
    [[ $heard ]] || return 0
  done
}
"""


@dataclass(frozen=True)
class Size:
    """How many hosts and ranks a run gets."""

    nodes: int
    ranks: int  # of all nodes together
    cpus: int | None = None  # of a rank

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("ranks", self.ranks), ("cpus", self.cpus or 1)):
            if value < 1:
                raise UserError(f"--{name} {value}: must be at least 1")
        if self.ranks % self.nodes:
            lower = self.ranks - self.ranks % self.nodes
            near = " or ".join(str(count) for count in (lower, lower + self.nodes) if count)
            raise UserError(
                f"--ranks {self.ranks} on --nodes {self.nodes}: every node gets the same number of ranks; "
                f"choose --ranks {near}"
            )

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one host."""
        return self.ranks // self.nodes


@dataclass(frozen=True)
class Place:
    """What every host needs before a run starts there."""

    folder: Path  # the working directory: relative paths start here
    programs: Path  # the folder of this Python's programs: sancus, torchrun, mpiexec
    setup: tuple[str, ...] = ()  # lines of the shell


@dataclass(frozen=True)
class Job:
    """One run: the words behind `sancus train`, and what it gets."""

    words: tuple[str, ...]
    size: Size
    place: Place
    backend: str = "gloo"
    restarts: int = 0
    usual_out: str | None = None  # where the run's files go, for the shell; None where `words` say it

    def train(self) -> str:
        """`sancus train …` for the shell; started again, it goes on."""
        out = "" if self.usual_out is None else f' --out "{self.usual_out}" --resume auto'
        return shlex.join(["sancus", "train", *self.words]) + out

    def environment(self) -> list[str]:
        """Lines of the shell that make a host ready: where programs are, threads, and what the user adds."""
        programs = f'export PATH={shlex.quote(str(self.place.programs))}:"$PATH"'
        return [programs, *self.threads(), *self.place.setup]

    def threads(self) -> list[str]:
        """The line of the shell that says how many threads a rank has, where that was asked for."""
        return [] if self.size.cpus is None else [f"export OMP_NUM_THREADS={self.size.cpus}"]

    def enter(self) -> str:
        """The line of the shell that goes to the working directory."""
        return f"cd {shlex.quote(str(self.place.folder))}"


class Launcher(Protocol):
    """One way to start a job on hosts: a kind of cluster, with its own settings."""

    @property
    def usual_out(self) -> str | None:
        """Where a run's files go that names no `--out`: the same place when it is started again."""
        ...

    def script(self, job: Job) -> str:
        """The complete script, ready for `submit`."""
        ...

    def submit(self) -> list[str]:
        """The command that starts a script, which it reads from its standard input."""
        ...


@dataclass(frozen=True)
class JobScript:
    """A script, and how it is started."""

    text: str
    command: tuple[str, ...]

    def write(self, path: str | Path) -> None:
        """Leave it as a file that can be run."""
        file = Path(path)
        file.write_text(self.text)
        file.chmod(0o755)

    def submit(self) -> str:
        """Start it; what the cluster answers, for instance the number of the job."""
        line = shlex.join(self.command)
        try:
            done = subprocess.run(
                self.command, input=self.text, text=True, stdout=subprocess.PIPE, check=False
            )
        except FileNotFoundError:
            raise UserError(
                f"--submit: {self.command[0]} is not on the PATH; submit it where it is"
            ) from None
        if done.returncode:
            raise UserError(f"--submit: {line} ended with exit code {done.returncode}")
        return done.stdout.strip()


def check_hosts(hosts: Sequence[str], nodes: int) -> None:
    """Refuse names that are not as many as the nodes, that stand twice, or that are no names."""
    if len(hosts) != nodes:
        raise UserError(
            f"--hosts {' '.join(hosts)}: {len(hosts)} names for --nodes {nodes}; give one for each"
        )
    for host in hosts:
        if not HOST.fullmatch(host):
            raise UserError(f"--hosts {host!r} is no name of a host; write them apart: --hosts node0 node1")
        if hosts.count(host) > 1:
            raise UserError(f"--hosts: {host} stands twice; more ranks on a host are more --ranks")
