"""What rank 0 tells the program while it works: a line of JSON each, through a named pipe."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sancus.console.speaker import Record, Speaker

PIPE = "events"


class RemoteSpeaker:
    """The speaker of rank 0: what it is told to say is said in the program's process."""

    def __init__(self, folder: Path) -> None:
        self._pipe = (folder / PIPE).open("w", buffering=1, encoding="utf-8")

    def __call__(self, line: str) -> None:
        self._tell({"line": line})

    def step(self, line: str, *, passing: bool = False) -> None:
        self._tell({"step": line, "passing": passing})

    def epoch(self, record: Record, epochs: int) -> None:
        self._tell({"epoch": dict(record), "epochs": epochs})

    def close(self) -> None: ...

    def _tell(self, event: dict[str, Any]) -> None:
        self._pipe.write(json.dumps(event) + "\n")


class Listener:
    """The program's end of the pipe: hands what arrives to a speaker, and every epoch to the program too."""

    def __init__(self, folder: Path, say: Speaker, after_epoch: Callable[[Record], None]) -> None:
        os.mkfifo(folder / PIPE, 0o600)
        self.fd = os.open(folder / PIPE, os.O_RDWR | os.O_NONBLOCK)  # open for writing too: it never ends
        self._say, self._after_epoch = say, after_epoch
        self._rest = b""

    def read(self) -> None:
        """Hand on all that is there."""
        while True:
            try:
                chunk = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def close(self) -> None:
        os.close(self.fd)

    def _hear(self, event: dict[str, Any]) -> None:
        if "epoch" in event:
            self._say.epoch(event["epoch"], event["epochs"])
            self._after_epoch(event["epoch"])
        elif "step" in event:
            self._say.step(event["step"], passing=event["passing"])
        else:
            self._say(event["line"])
