"""Local ranks of a program: a script, an interactive session, a notebook's kernel.

The program waits, shows what its ranks say, and tells them of Ctrl-C. What they print on stdout and stderr
appears where the program prints. No process outlives the call: the launcher ends with the program's thread,
and ranks end with their launcher.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from sancus.console.speaker import Record, Speaker
from sancus.errors import RankError, UserError
from sancus.launch.exit_codes import EXIT_USER
from sancus.programs.errand import Errand, Findings, pack
from sancus.programs.events import Listener

LAUNCHER = "sancus.programs.launcher"
OWN_LINE = "sancus: "
FAILED = re.compile(r"rank (\d+) failed with exit code \d+; all ranks were ended")
ABOVE = re.compile(r"sancus: rank (\d+): failed with the error above")


def run_ranks(
    errand: Errand,
    model: object,
    ranks: int,
    backend: str,
    say: Speaker,
    *,
    restarts: int = 0,
    after_epoch: Callable[[Record], None] = lambda record: None,
) -> Findings:
    """Let so many local ranks do an errand; what rank 0 found.

    A user's mistake is `UserError`, a rank that fails `RankError`, Ctrl-C `KeyboardInterrupt`, once all ranks
    have ended. A second Ctrl-C kills them.
    """
    with tempfile.TemporaryDirectory(prefix="sancus-") as name:
        folder = Path(name)
        pack(errand, model, folder)
        listener = Listener(folder, say, after_epoch)
        try:
            command = [sys.executable, "-P", "-m", LAUNCHER, name, str(os.getpid()), str(ranks), backend]
            with _Launcher([*command, str(restarts)], listener) as launcher:
                launcher.wait()
        finally:
            listener.close()
        launcher.check()
        return Findings.read(folder)


class _Launcher:
    """The process that starts the ranks, in a process group of its own: Ctrl-C reaches it from here alone."""

    def __init__(self, command: list[str], listener: Listener) -> None:
        self._listener = listener
        self._interrupts = 0
        paths = [path or os.getcwd() for path in sys.path]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._child.stdout is not None and self._child.stderr is not None
        out, err = self._child.stdout.fileno(), self._child.stderr.fileno()
        self._errors = Relay(err, sys.stderr, OWN_LINE)
        self._relays = {out: Relay(out, sys.stdout), err: self._errors}

    def __enter__(self) -> _Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left behind, whatever has happened here."""
        if self._child.poll() is None:
            self._child.kill()  # its ranks die with it
            self._child.wait()
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            stream.close()

    def wait(self) -> None:
        """Show what ranks say until the launcher has ended; Ctrl-C goes to them."""
        while True:
            try:
                self._listen()
                return
            except KeyboardInterrupt:
                self._interrupts += 1
                if self._interrupts > 1:
                    raise
                self._child.send_signal(signal.SIGINT)

    def check(self) -> None:
        """Raise what the exit code says."""
        code, held = self._child.returncode, self._errors.held_back
        line = held.removeprefix(OWN_LINE).strip()
        if self._interrupts:
            raise KeyboardInterrupt(line)
        if code == EXIT_USER:
            raise UserError(line)
        if code:
            raise RankError(self._errors.blame(line) or f"local ranks ended with exit code {code}")
        self._errors.release()

    def _listen(self) -> None:
        ended = os.pidfd_open(self._child.pid) if self._child.poll() is None else None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener.fd, selectors.EVENT_READ)
            for descriptor, relay in self._relays.items():
                if not relay.ended:
                    selector.register(descriptor, selectors.EVENT_READ)
            if ended is not None:
                selector.register(ended, selectors.EVENT_READ)
            try:
                while ended is not None:
                    ready = {key.fd for key, _ in selector.select()}
                    for descriptor in ready & self._relays.keys():
                        self._relays[descriptor].read()
                        if self._relays[descriptor].ended:
                            selector.unregister(descriptor)
                    if self._listener.fd in ready:
                        self._listener.read()
                    if ended in ready:
                        break
            finally:
                if ended is not None:
                    os.close(ended)
        self._child.wait()
        self._listener.read()
        for relay in self._relays.values():
            while relay.read():
                pass


class Relay:
    """Passes on what a process prints to where this program prints, a notebook's cell for instance.

    A last line that begins with `held` is kept: it may be the message of an exception.
    """

    def __init__(self, descriptor: int, target: TextIO, held: str = "") -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._target, self._prefix = descriptor, target, held
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line_before = ""
        self._cause = ""
        self.held_back = ""
        self._rest = ""
        self.ended = False

    def read(self) -> bool:
        """Pass on what is there; False where there is nothing now, and `ended` where there never will be."""
        if self.ended:
            return False
        try:
            chunk = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            self.ended = True
            return False
        text = self._rest + self._decoder.decode(chunk)
        if not self._prefix:
            self._print(text)
            return True
        *lines, self._rest = text.split("\n")
        for line in lines:
            self._line(line + "\n")
        return True

    def release(self) -> None:
        """Print what was held back: it was no exception's."""
        self._print(self.held_back + self._rest)
        self.held_back = self._rest = ""

    def blame(self, line: str) -> str:
        """The message on a failed rank: who it was, and, where it raised an exception, which."""
        failed = FAILED.fullmatch(line)
        if failed is None or not self._cause:
            return line
        return f"rank {failed[1]}: {self._cause} (its traceback is above); all ranks were ended"

    def _line(self, line: str) -> None:
        if ABOVE.match(line):
            self._cause = self._line_before.strip()
        elif line.startswith(self._prefix):
            self._print(self.held_back)
            self.held_back = line
        else:
            self._print(self.held_back + line)
            self.held_back = ""
        self._line_before = line

    def _print(self, text: str) -> None:
        if text:
            self._target.write(text)
            self._target.flush()
