"""What in a directory belongs to the run there, and what is somebody else's and never touched.

A run begins where all the names that it will write are free, and then puts a marker there, `.files.json`. It
notes the checksum of every file that it writes as a whole, before that file gets its name, and the name of
every file that a tracker begins. So in a directory with a marker a file is proven to be the run's if

- it was written as a whole, and its content has a checksum that the marker notes; or
- it is one that changes during a run (metrics, logs, checkpoints), has the name of one, and begins as one; or
- the marker names it as a tracker's.

Runs of earlier versions have no marker: there `run.json` proves the run, and what a file holds the file.
Imports no torch: directories are checked before any rank starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import xxhash

from sancus.runs.checkpoints import names

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
DECISIONS_FILE = "decisions.npz"
PREDICTIONS_FILE = "predictions.npz"
REPORT_FILE = "report.html"
CHECKPOINTS = "checkpoint"
LOGS = "logs"
EVENTS = "tensorboard"
OWNER_FILE = ".run"  # which run the directory belongs to, and locked while that run is at work there
MARKER = ".files.json"
WHOLE = (DECISIONS_FILE, PREDICTIONS_FILE, REPORT_FILE, RUN_FILE)  # written as a whole; run.json goes last
FOLDERS = (CHECKPOINTS, LOGS, EVENTS)
TAKEN = (*WHOLE, METRICS_FILE, *FOLDERS)  # what has to be free where a run begins
NOTED = 2  # checksums of a file: of what it holds, and of what it is about to hold
HEAD = 4096  # bytes by which a file is recognised
EVENT_FILE = re.compile(r"events\.out\.tfevents\..+")
LOG_FILE = re.compile(r"\.?(rank-\d+\.(log|jsonl|status|live|jsonl\.partial)|merges\.jsonl(\.partial)?)")
OWNER = re.compile(rb"\S{0,300}")
LOG_LINE = re.compile(rb"[0-9-]+ [0-9:,]+ INFO rank \d+ of \d+ on ")
EPOCH_LINE = b'{"epoch": '
PAGE_TITLE = "· Sancus</title>".encode()
Notes = dict[str, list[str]]  # checksums by the names of files; none for a file that a tracker appends to


class Belongings:
    """The marker of a run at work: rank 0 notes there what it writes."""

    def __init__(self, directory: Path, notes: Notes | None = None) -> None:
        self._directory = directory
        self._notes: Notes = dict(notes or {})

    @classmethod
    def begin(cls, directory: Path) -> Belongings:
        """Mark a directory as a run's; what is there of it already stays its own."""
        whole = [name for name in WHOLE if is_proven(directory, name)]
        notes = {name: [_checksum(directory / name)] for name in whole}
        notes |= {name: [] for name in _events(directory) if is_proven(directory, name)}
        belongings = cls(directory, notes)
        belongings._write()
        return belongings

    @classmethod
    def of(cls, directory: Path) -> Belongings:
        """The marker of a run that has ended; without effect where it is of a version that had none."""
        return cls(directory, _read_marker(directory))

    def publish(self, partial: Path, target: Path) -> None:
        """Give a file that is written its name; what it holds is noted first, in case of a crash."""
        if (self._directory / MARKER).exists():
            sums = self._notes.get(target.name, [])
            self._notes[target.name] = [*sums, _checksum(partial)][-NOTED:]
            self._write()
        os.replace(partial, target)

    @contextlib.contextmanager
    def tracker(self) -> Iterator[None]:
        """Note the names of the files that appear inside the `with`, but for our own: a tracker's."""
        before = set(_files(self._directory))
        yield
        new = [name for name in _files(self._directory) if name not in before and not _is_known(name)]
        with contextlib.suppress(OSError):  # a full disk: the file then counts as somebody else's
            if new:
                self._notes |= {name: [] for name in new}
                self._write()

    def _write(self) -> None:
        partial = self._directory / f"{MARKER}.partial"
        partial.write_text(json.dumps(self._notes, indent=1) + "\n")
        os.replace(partial, self._directory / MARKER)


def in_the_way(directory: Path, *, kept: bool) -> str | None:
    """A file that a run would replace and that is not proven to be a run's; None where there is none.

    `kept` says that the run there goes on, so that only what it writes anew at its end is in question.
    """
    whole = WHOLE if kept else [*FOLDERS, *(name for name in _files(directory) if _is_known(name))]
    found = (name for name in (OWNER_FILE, MARKER, *whole) if os.path.lexists(directory / name))
    return next((name for name in found if not is_proven(directory, name)), None)


def remove(directory: Path) -> None:
    """Remove what is proven to be of the run in a directory; its proof goes last.

    The owner's file stays: the run that removes the others holds its lock there.
    """
    proven = [name for name in _files(directory) if name != OWNER_FILE and is_proven(directory, name)]
    for name in sorted(proven, key=(RUN_FILE, MARKER).__contains__):
        (directory / name).unlink(missing_ok=True)
    checkpoints = (directory / CHECKPOINTS).glob("*/")
    for folder in (*checkpoints, *(directory / name for name in FOLDERS)):
        with contextlib.suppress(OSError):  # something is left in it, or it is a link
            folder.rmdir()


def is_proven(directory: Path, name: str) -> bool:
    """Whether a file, named from the directory on, is surely one that the run there has written."""
    path, notes = directory / name, _read_marker(directory)
    if name in FOLDERS:
        return path.is_dir()
    if path.is_symlink() or not path.is_file():
        return False
    if name == OWNER_FILE:
        return OWNER.fullmatch(_head(path)) is not None
    if notes is None:
        return _is_run(directory / RUN_FILE) and (_is_known(name) or _is_event(name)) and _looks_ours(path)
    if name in WHOLE:
        return _checksum(path) in notes.get(name, [])
    return name in notes or (_is_known(name) and _looks_ours(path))


def _files(directory: Path) -> list[str]:
    """All files in a directory that could be a run's, by their names from there on."""
    places = [directory, *(directory / name for name in FOLDERS), *(directory / CHECKPOINTS).glob("*/")]
    found = (path for place in places if place.is_dir() for path in place.iterdir() if not path.is_dir())
    return sorted(str(path.relative_to(directory)) for path in found)


def _events(directory: Path) -> list[str]:
    """The files of a tracker that are there, noted or of TensorBoard."""
    noted = _read_marker(directory) or {}
    return [name for name in _files(directory) if name not in WHOLE and (name in noted or _is_event(name))]


def _is_known(name: str) -> bool:
    """Whether this is the name of a file that runs write, but for those of trackers."""
    folder, _, file = name.rpartition("/")
    if folder == LOGS:
        return LOG_FILE.fullmatch(file) is not None
    if folder.startswith(f"{CHECKPOINTS}/"):
        beginnings = ("epoch-", f"{names.PARTIAL}epoch-", f"{names.OLD}epoch-")
        return folder.removeprefix(f"{CHECKPOINTS}/").startswith(beginnings) and names.is_ours(file)
    return name in (*WHOLE, METRICS_FILE, MARKER)


def _is_event(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return folder == EVENTS and EVENT_FILE.fullmatch(file) is not None


def _looks_ours(path: Path) -> bool:
    """Whether a file with a name of ours holds what we write under that name; nothing counts as that."""
    if path.suffix == ".npz":
        held = {DECISIONS_FILE: "decisions.npy", PREDICTIONS_FILE: "prediction.npy"}[path.name]
        return held in _members(path)
    if path.name == RUN_FILE:
        return _is_run(path)
    head = _head(path)
    if path.name == REPORT_FILE:
        return PAGE_TITLE in head
    if path.suffix == ".jsonl":
        return not head or head.startswith(EPOCH_LINE)
    if path.suffix == ".log":
        return not head or LOG_LINE.match(head) is not None
    return path.name != MARKER or _read_marker(path.parent) is not None


def _is_run(path: Path) -> bool:
    """Whether a file is the `run.json` of a run, finished or not."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"config", "command", "versions", "graph"} <= content.keys()


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def _read_marker(directory: Path) -> Notes | None:
    """What the marker notes; None where there is none, or one that is not ours."""
    try:
        content = json.loads((directory / MARKER).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(content, dict) and all(isinstance(sums, list) for sums in content.values())
    return content if whole else None


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
