"""Code that a run's files name is only run where its user has chosen it: by typing it, or by `--trust`.

What this user has chosen is noted in the cache directory, as a hash of the class's name and of the text that
Python would run to import its module: so a run of one's own is repeated and gone on with as it is, until that
text changes. A hash inside the run itself would prove nothing, since whoever made the run wrote it too.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from sancus.config.kinds import KINDS
from sancus.datasets.home import home
from sancus.datasets.open import own_reader
from sancus.errors import UserError
from sancus.plugins import import_path, parse

NOTES = "chosen"  # the folder in the cache with an empty file for each text that was chosen


def own_code(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The code in settings, by the names of flags, that is no part of Sancus: (flag, `module:Class`)."""
    for kind in KINDS:
        for flag in KINDS[kind].flags:
            spec = settings.get(flag)
            if spec is not None and KINDS[kind].own and spec not in KINDS[kind].words:
                parsed = parse(kind, KINDS[kind].table, str(spec))
                if parsed.name not in KINDS[kind].table:
                    yield flag, parsed.target
    reader = own_reader(str(settings.get("data", "")))
    if reader is not None:
        yield "data", reader


def check_trust(settings: Mapping[str, object], source: str) -> None:
    """Refuse code that the settings of a run or file, `source`, name and that this user has not chosen."""
    for flag, target in own_code(settings):
        if not _is_chosen(target):
            raise UserError(
                f"{source} names code that is not part of Sancus: {flag} {target}; look at it, "
                "and add --trust to run it"
            )


def note_choice(settings: Mapping[str, object]) -> None:
    """Remember that this user runs the code that settings name; where that cannot be written, it is asked."""
    for _, target in own_code(settings):
        digest = _digest(target)
        if digest is not None:
            with contextlib.suppress(OSError):
                folder = home() / NOTES
                folder.mkdir(parents=True, exist_ok=True)
                (folder / digest).touch()


def _is_chosen(target: str) -> bool:
    digest = _digest(target)
    return digest is not None and (home() / NOTES / digest).exists()


def _digest(target: str) -> str | None:
    """A hash of a class's name and of all that importing its module reads; None where that is not known."""
    module, _, attribute = target.partition(":")
    content = hashlib.sha256(attribute.encode())
    found = False
    for path in _files_of(module):
        with contextlib.suppress(OSError):
            content.update(b"\0" + hashlib.sha256(path.read_bytes()).digest())
            found = True
    return content.hexdigest() if found else None


def _files_of(module: str) -> Iterable[Path]:
    """The files that importing a module runs, those of the packages it is in included; imports nothing."""
    if module.endswith(".py"):
        return [Path(module).expanduser()]
    files, folders = list[Path](), import_path()
    names = module.split(".")
    for depth in range(len(names)):
        spec = PathFinder.find_spec(".".join(names[: depth + 1]), folders)
        if spec is None:
            return []
        if spec.origin is not None:
            files.append(Path(spec.origin))
        folders = list(spec.submodule_search_locations or [])
    return files
