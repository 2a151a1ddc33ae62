"""A throw-away Slurm of this machine: a controller, two nodes and their munge, started and ended by a test.

    with Slurm(folder) as slurm:
        job = slurm.submit(script)

Everything has a folder and ports of its own, so that nothing clashes with a Slurm that is really here. The
daemons stay in the foreground as children of this process, and die with it. A node has processes of its own,
so that it can die as a machine does, and its own /etc/hosts, in which the names of nodes are.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sancus.launch.process import follow_parent
from tests.helpers.strike import SOON

PATH = "/usr/sbin:/sbin"
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scancel", "scontrol", "sinfo")
NODES = ("n0", "n1")
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")


def unavailable() -> str | None:
    """Why there can be no Slurm here; None where there can."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:{PATH}") is None]
    if lacking:
        return f"no Slurm here: {', '.join(lacking)} not found (slurm-wlm, munge)"
    if os.geteuid() != 0:
        return "no Slurm here: its daemons want the rights of root"
    probe = [*APART, "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"no Slurm here: a node wants namespaces: {done.stderr.strip()}" if done.returncode else None


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Slurm:
    """A cluster of two nodes, which share this machine, while the context is open."""

    def __init__(self, folder: Path, cpus: int = 4) -> None:
        self.folder = folder
        self.cpus = cpus
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:{PATH}",
        }

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the daemons; with a node end its jobs."""
        for daemon in reversed(self.daemons.values()):
            daemon.kill()
        for daemon in self.daemons.values():
            daemon.wait()
        self.daemons.clear()

    def _build(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        names = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", socket.gethostname(), *NODES))
        (self.folder / "hosts").write_text(names)
        (self.folder / "slurm.conf").write_text(self._configuration(free_ports(1 + len(NODES))))
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *files)
        self._until(lambda: (munge / "socket").exists(), "munged")
        self._start("slurmctld", "-D", "-c")
        for node in NODES:
            self.start_node(node)
        self._until(lambda: self.call("sinfo", "-h", "-t", "idle", "-o", "%D", check=False) == "2", "slurmd")

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, for the first time or again, with processes and names of its own."""
        inside = (
            f"mount --bind {shlex.quote(str(self.folder / 'hosts'))} /etc/hosts; slurmd -D -N {node} & wait"
        )
        self._start(*APART, "sh", "-c", inside, key=node)

    def kill_node(self, node: str) -> None:
        """A node dies, with all that runs there."""
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait()

    def submit(self, script: str, *flags: str) -> str:
        """The number of a new job."""
        return self.call("sbatch", "--parsable", *flags, input_text=script).partition(";")[0]

    def call(self, program: str, *words: str, input_text: str | None = None, check: bool = True) -> str:
        """What a program of Slurm prints."""
        done = subprocess.run(
            [program, *words],
            env=self.environment(),
            input=input_text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{program} {words}: {done.stderr}\n{self.logs()}"
        return done.stdout.strip()

    def environment(self) -> dict[str, str]:
        """What programs of Slurm need, and what jobs inherit."""
        return dict(self._environment)

    def use(self, environment: Mapping[str, str]) -> None:
        """What jobs inherit from now on."""
        self._environment |= {name: value for name, value in environment.items() if name != "PATH"}

    def state(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        words = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def wait_until(self, job: str, states: Sequence[str] = ENDED, timeout: float = SOON) -> str:
        """Wait until a job is in one of some states, and give it."""
        deadline = time.monotonic() + timeout
        while (state := self.state(job)["JobState"]) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state}\n{self.logs()}"
            time.sleep(0.1)
        return state

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        texts = [f"--- {log.name}\n{log.read_text()[-2000:]}" for log in self.folder.glob("*.log")]
        return "\n".join(texts)

    def _start(self, program: str, *words: str, key: str | None = None) -> None:
        with (self.folder / f"{key or program}.out.log").open("ab") as log:
            self.daemons[key or program] = subprocess.Popen(
                [program, *words],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=follow_parent,
            )

    def _until(self, ready: Callable[[], bool], who: str) -> None:
        deadline = time.monotonic() + SOON
        while not ready():
            assert time.monotonic() < deadline, f"{who} is not ready\n{self.logs()}"
            time.sleep(0.1)

    def _configuration(self, ports: Sequence[int]) -> str:
        here, folder = socket.gethostname(), self.folder
        room = f"CPUs={self.cpus} RealMemory=1000"
        nodes = [
            f"NodeName={node} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} {room}"
            for node, port in zip(NODES, ports[1:], strict=True)
        ]
        lines = {
            "ClusterName": "throwaway",
            "SlurmctldHost": f"{here}(127.0.0.1)",
            "SlurmUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder}/munge/socket",
            "SlurmctldPort": ports[0],
            "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": f"{folder}/spool-%n",
            "SlurmctldPidFile": folder / "slurmctld.pid",
            "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
            "SlurmctldLogFile": folder / "slurmctld.log",
            "SlurmdLogFile": f"{folder}/slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SlurmdParameters": "config_overrides",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,requeue_delay=0",
            "SlurmdTimeout": 10,
            "KillWait": 60,
            "ReturnToService": 2,
            "MpiDefault": "none",
        }
        partition = "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
        return "\n".join([*(f"{name}={value}" for name, value in lines.items()), *nodes, partition, ""])
