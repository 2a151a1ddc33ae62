"""One trial: a run that nobody disturbs, the same run disturbed and gone on with, and what must be equal.

The law: losses, scores, decisions, weights and what every rank remembers are equal bit for bit, and nothing
is left behind: no process, port, shared memory or temporary file.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sancus.launch.exit_codes import EXIT_USER, exit_code
from tests.chaos.command import KILLED, Command, Ended
from tests.chaos.drawn import ASKING, DAMAGE, DISK, Disturbance, Trial
from tests.chaos.place import Place
from tests.faults.sessions import COMPUTED, assert_same, newest
from tests.helpers.command import LAUNCHER_VARIABLES, TOP, metrics

GO_ON = "go on with: "
FINISH = "finish with: "
UNSAVED = "no checkpoint of epoch"  # results are there, but the weights of the last epoch may not be
MOST_COMMANDS = 12  # of one trial: more than that is a run that never ends


class Broken(Exception):  # noqa: N818 - it is found, not raised by mistake
    """The law does not hold in this trial."""


class RefusedError(Exception):
    """The settings that were drawn are refused, so there is nothing to disturb."""


class Execution:
    """Runs a trial in a place of its own; `story` tells what happened."""

    def __init__(self, trial: Trial, place: Place) -> None:
        self.trial = trial
        self.place = place
        self.story: list[str] = []
        self.reached: list[bool] = []  # by disturbance: whether it met a run
        self._whole, self._out = place.disk / "undisturbed", place.disk / "run"

    def run(self) -> None:
        """Both runs, and the comparison; raises `Broken` where the law does not hold."""
        ended = self._command(self._first(self._whole), self._whole)
        if ended.code == EXIT_USER:
            raise RefusedError(ended.last_line)
        self._demand(ended.code == 0, "the undisturbed run fails")
        if self.trial.cold:
            shutil.rmtree(self.place.home)
            self.place.home.mkdir()
        argv = self._first(self._out)
        for disturbance in self.trial.disturbances:
            ended = self._disturbed(argv, disturbance)
            argv = self._next(ended)
        for _ in range(MOST_COMMANDS):
            if ended.code == 0 and UNSAVED not in ended.said:
                break
            ended = self._command(argv, self._out)
            argv = self._next(ended)
        self._demand(ended.code == 0, "the run does not come to its end")
        self._compare()

    def _first(self, out: Path) -> list[str]:
        trial = self.trial
        argv = ["train", *trial.flags, "--epochs", str(trial.epochs), "--ranks", str(trial.ranks)]
        argv += ["--threads", "1", "--out", str(out)]
        argv += ["--backend", trial.backend] if trial.ranks > 1 else []
        return argv + (["--restarts", str(trial.restarts)] if trial.restarts and out == self._out else [])

    def _next(self, ended: Ended) -> list[str]:
        """What a user does next: what the last line says, else the same command, which goes on by itself."""
        for words in (GO_ON, FINISH):
            before, found, command = ended.last_line.rpartition(words)
            if found and before:
                return shlex.split(command)[1:]
        if "start again without --resume" in ended.last_line:
            return [*self._first(self._out), "--overwrite"]
        return [*self._first(self._out), "--resume", "auto"]

    def _disturbed(self, argv: Sequence[str], disturbance: Disturbance) -> Ended:
        """A command that something happens to, or before."""
        if disturbance.kind in DAMAGE:
            self.reached.append(self._damage(disturbance))
            return self._command(argv, self._out)
        command = self._start(argv, self._out)
        reached = command.wait_for(disturbance.moment)
        if reached:
            with contextlib.ExitStack() as stack:
                reached = self._strike(command, disturbance, stack)
                if disturbance.kind == DISK[0] or disturbance.kind == DISK[2]:
                    command.finish()  # nobody makes room meanwhile
        self.reached.append(reached)
        ended = self._end(command)
        if reached and disturbance.number in ASKING and disturbance.target == "launcher":
            self._demand(
                ended.code in (0, exit_code(disturbance.number)), "the exit code is not that of the signal"
            )
        return ended

    def _strike(self, command: Command, disturbance: Disturbance, stack: contextlib.ExitStack) -> bool:
        """Disturb a command; what lasts ends with `stack`. Whether there was anything to disturb."""
        if disturbance.number:
            struck = command.signal(disturbance.number, disturbance.target)
            if disturbance.number == signal.SIGSTOP:
                command.pause(disturbance.pause)
                command.signal(signal.SIGCONT, disturbance.target)
            return struck
        places = {
            DISK[0]: self.place.full_disk,
            DISK[1]: self.place.full_disk,
            DISK[2]: lambda: self.place.read_only(self._out / "checkpoint"),
            "link down for a while": self.place.link_down,
            "slow link": self.place.slow_link,
        }
        there = stack.enter_context(places[disturbance.kind]())
        if disturbance.kind not in (DISK[0], DISK[2]):
            command.pause(disturbance.pause)
        return there is not False

    def _damage(self, disturbance: Disturbance) -> bool:
        """Flip one byte; False where there is nothing that could be lost without harm.

        The only checkpoint of a run is never damaged: what was computed since then would be lost with it.
        """
        if disturbance.kind == DAMAGE[1]:
            files = sorted(self.place.home.glob("shards/*/*/*")) + sorted(
                self.place.home.glob("shards/*/*.json")
            )
        elif len(list(self._out.glob("checkpoint/epoch-*"))) < 2:
            return False
        else:
            files = sorted(newest(self._out).iterdir())
        files = [file for file in files if file.is_file() and file.stat().st_size]
        total = sum(file.stat().st_size for file in files)
        place = int(disturbance.where * total)
        for file in files:
            if place < file.stat().st_size:
                content = bytearray(file.read_bytes())
                content[place] ^= 1 << random.Random(self.trial.seed).randrange(8)
                file.write_bytes(content)
                self.story.append(f"byte {place} of {file.relative_to(self.place.disk.parent)} flipped\n")
                return True
            place -= file.stat().st_size
        return False

    def _command(self, argv: Sequence[str], out: Path) -> Ended:
        return self._end(self._start(argv, out))

    def _start(self, argv: Sequence[str], out: Path) -> Command:
        env = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        env |= {"SANCUS_HOME": str(self.place.home), "TMPDIR": str(self.place.temporary)}
        env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TOP), "GLOO_SOCKET_IFNAME": "lo"}
        return Command(argv, env, self.place.disk.parent, out / "metrics.jsonl", self.trial.ranks)

    def _end(self, command: Command) -> Ended:
        """Wait for the end of a command and of all that it started; what it says must be fit for a user."""
        ended = command.finish()
        self.story.append(str(ended))
        self._demand(ended.code != KILLED, "a command hangs")
        self._demand("Traceback" not in ended.said, "a user sees a traceback")
        left = self.place.wait_for_the_last()
        self._demand(not left, f"left behind: {'; '.join(left)}")
        return ended

    def _compare(self) -> None:
        left = self.place.leftovers()
        self._demand(not left, f"left behind: {', '.join(left)}")
        hidden = [sorted(path.name for path in _hidden(folder)) for folder in (self._out, self._whole)]
        self._demand(hidden[0] == hidden[1], f"left in the run's directory: {hidden}")
        try:
            assert_same(self._out, self._whole)
        except AssertionError as error:
            pairs = zip(metrics(self._out), metrics(self._whole), strict=False)
            found = ((one["epoch"], _differing(one, other)) for one, other in pairs)
            first = next((f"epoch {epoch}: {figures}" for epoch, figures in found if figures), "")
            raise Broken(f"the runs differ, first in {first or str(error)[:500]}") from error

    def _demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(what)


def _differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The figures of one epoch that differ, of those that an epoch computes."""
    return {name: (one[name], other[name]) for name in COMPUTED if one[name] != other[name]}


def _hidden(folder: Path) -> list[Path]:
    """What is no result of a run, in its directory and among its checkpoints."""
    return [*folder.glob(".*"), *folder.glob("checkpoint/.*"), *folder.glob("logs/.*")]
