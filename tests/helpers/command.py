"""The real command line in tests: `sancus …` as a person starts it, alone or under a launcher.

    result = run("train", "synthetic:nodes=300", "--epochs", "2", launcher="torchrun", ranks=3)
    assert result.code == 0, result

A `Result` prints as the whole story, so a failed assertion shows it. Every command runs in a session of its
own; at the deadline that session is killed, and nothing else. All commands of a test run share one cache.

Importing torch takes longer than most commands work. So `run` has a command as a fork of a server that has
imported it, unless another program starts it, or a test says `fresh`; `started` always starts Python anew.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sancus.launch.process import follow_parent
from tests.helpers import processes

TOP = Path(__file__).parents[2]
TIMEOUT = 800.0  # for what hangs; a busy machine may take its time
Launcher = Literal["local", "torchrun", "mpiexec"]
# What a launcher sets: a test that runs under one must not pass it on.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SANCUS_RENDEZVOUS")


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    command: str
    code: int
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        head = f"$ {self.command}\nexit code {self.code} after {self.seconds:.1f} s"
        return f"{head}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    __repr__ = __str__


def run(
    *args: str | Path,
    launcher: Launcher | None = None,
    ranks: int = 1,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    cwd: Path | None = None,
    prefix: Sequence[str] = (),
    fresh: bool = False,
) -> Result:
    """`sancus args` until it ends; code 124 says that it had to be killed at the deadline.

    `fresh` is for what happens while Python starts, and until a command is the launcher of its ranks.
    """
    if not (fresh or prefix or launcher in ("torchrun", "mpiexec")):
        assert env is None or "PYTHONPATH" not in env, "only a fresh process heeds it"
        return _forked(_words([str(arg) for arg in args], launcher, ranks), environment(env), cwd, timeout)
    with started(*args, launcher=launcher, ranks=ranks, env=env, cwd=cwd, prefix=prefix) as process:
        return process.finish(timeout)


def endings_of(cases: Sequence[Mapping[str, Any]], cwd: Path | None = None) -> list[dict[str, Any]]:
    """How commands end that are over before a rank starts: many in one go (`command_entry.py`)."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.command_entry"],
        input=json.dumps(cases),
        env=environment(),
        cwd=cwd or home(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    ended: list[dict[str, Any]] = json.loads(done.stdout)
    return ended


def _forked(argv: list[str], env: Mapping[str, str], cwd: Path | None, timeout: float) -> Result:
    with tempfile.TemporaryDirectory(prefix="sancus-test-") as folder:
        files = [Path(folder) / name for name in ("stdout", "stderr")]
        begun = time.monotonic()
        code = processes.run_command(argv, env, cwd or home(), *files, timeout)
        out, err = (file.read_text(errors="replace") for file in files)
        ended = code if isinstance(code, int) else 124
        return Result(shlex.join(["sancus", *argv]), ended, out, err, time.monotonic() - begun)


def _prepare_child() -> None:
    """Tests that run in the background of a shell ignore SIGINT; what they start must not.

    And a command ends with the tests, also where these are killed: endless trainings are among them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    follow_parent()


class Process:
    """A command that runs."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path, folder: Path) -> None:
        self.command = shlex.join(command)
        self.out, self.err = folder / "stdout", folder / "stderr"
        self._files = [self.out, self.err]
        self._begun = time.monotonic()
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self._child = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        self.pid = self._child.pid

    def finish(self, timeout: float = TIMEOUT) -> Result:
        """Wait until it ends, or end it."""
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            code = 124
        return self._result(code)

    def wait_for(self, path: Path, text: str, timeout: float = TIMEOUT) -> None:
        """Wait until a file holds a text; the command must still be running then."""
        deadline = time.monotonic() + timeout
        while not (path.exists() and text in path.read_text()):
            assert self._child.poll() is None, self._result(self._child.returncode)
            assert time.monotonic() < deadline, f"no {text!r} in {path}\n{self._result(-1)}"
            time.sleep(0.05)

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def errors(self) -> str:
        """What it has written to stderr so far."""
        return self._files[1].read_text(errors="replace")

    def kill(self) -> None:
        """Kill the whole session, if anything of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()

    def _result(self, code: int) -> Result:
        out, err = (file.read_text(errors="replace") for file in self._files)
        return Result(self.command, code, out, err, time.monotonic() - self._begun)


@contextlib.contextmanager
def started(
    *args: str | Path,
    launcher: Launcher | None = None,
    ranks: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    prefix: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Iterator[Process]:
    """The same, while it runs: for tests that send signals.

    `prefix` is a program that starts the command (`nsenter …`), `options` are those of torchrun.
    """
    with tempfile.TemporaryDirectory(prefix="sancus-test-") as folder:
        command = [*prefix, *_command([str(arg) for arg in args], launcher, ranks, options)]
        process = Process(command, environment(env), cwd or home(), Path(folder))
        try:
            yield process
        finally:
            process.kill()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command sees: one thread a rank, our cache, no launcher but its own."""
    clean = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    ours = {"SANCUS_HOME": str(home()), "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}
    return clean | ours | dict(extra or {})


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sancus-test-home-")


def home() -> Path:
    """`SANCUS_HOME` of all commands of this test run, removed at its end."""
    return Path(_home().name)


def program(name: str) -> str:
    """A program of the environment that runs the tests."""
    return str(Path(sys.executable).with_name(name))


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The epochs of a run."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def losses(directory: Path) -> list[float]:
    """The training loss of every epoch of a run."""
    return [epoch["loss"] for epoch in metrics(directory)]


def read_run(directory: Path) -> dict[str, Any]:
    """`run.json`."""
    content: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return content


def _command(args: list[str], launcher: Launcher | None, ranks: int, options: Sequence[str]) -> list[str]:
    module = ["-m", "sancus", *_words(args, launcher, ranks)]
    if launcher == "torchrun":
        endpoint = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        return [program("torchrun"), *endpoint, *options, "--nproc-per-node", str(ranks), *module]
    if launcher == "mpiexec":
        return [program("mpiexec"), "-n", str(ranks), sys.executable, *module]
    return [sys.executable, *module]


def _words(args: list[str], launcher: Launcher | None, ranks: int) -> list[str]:
    return [*args, "--ranks", str(ranks)] if launcher == "local" else args
