"""The checkpoints of a run, which all its ranks write and read together.

What ranks have in common reaches all of them from rank 0 over the transport. Their own files are read where
they were written: on a file system that all hosts share, or on the disk of each host.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from sancus.comm.group import Group
from sancus.comm.records import broadcast_bytes, gather_json
from sancus.runs.checkpoints import durable, names, reader


@dataclass(frozen=True)
class WholeCheckpoint:
    """A checkpoint to go on from: what all ranks share of it is whole."""

    directory: Path
    shared: reader.Files
    own: Path | None  # this rank's file; None where not all ranks have theirs
    ranks: int  # how many wrote it
    passed_over: tuple[str, ...]  # newer ones that are damaged

    def describe(self) -> str:
        """The line that tells a user which checkpoint the run goes on from."""
        note = f"; {', '.join(self.passed_over)} is damaged and was passed over" if self.passed_over else ""
        return f"resumed from {self.directory}{note}"


class Checkpoints:
    """The checkpoints of one run, which all ranks write and read together."""

    def __init__(self, folder: Path, group: Group, device: torch.device, keep: int = 2) -> None:
        self._folder = folder
        self._group = group
        self._device = device
        self._keep = keep

    def write(self, epoch: int, shared: reader.Files | None, own: bytes) -> str | None:
        """Write the checkpoint of an epoch, all or nothing; why it could not be written, where it could not.

        `shared` is rank 0's. All ranks call this, and all get the same answer. Older checkpoints are only
        removed when this one is whole. One that is there already is left as it is: nothing happened since.
        """
        target = self._folder / f"epoch-{epoch:08d}"
        there = shared is not None and _is_whole(target, self._group.size)
        name = "" if there else durable.fresh_name(target.name)
        name = broadcast_bytes(self._group, name.encode(), self._device).decode()
        if not name:
            return None
        partial = self._folder / name
        rank, reason = self._group.rank, ""
        try:
            partial.mkdir(parents=True, exist_ok=True)
            durable.write_file(partial / names.rank_file(rank), own)
        except OSError as error:
            reason = f"rank {rank}: {error.strerror or error}"
        records = gather_json(self._group, [reason, durable.checksum(own)], self._device)
        reason = next(filter(None, (failure for failure, _ in records)), "")
        if shared is not None and not reason:
            sums = {names.rank_file(place): digest for place, (_, digest) in enumerate(records)}
            try:
                self._complete(partial, target, shared, sums)
            except OSError as error:
                reason = f"rank {rank}: {error.strerror or error}"
        reason = broadcast_bytes(self._group, reason.encode(), self._device).decode()
        self._settle(partial, target, failed=bool(reason))
        return reason or None

    def _complete(self, partial: Path, target: Path, shared: reader.Files, sums: dict[str, str]) -> None:
        """Rank 0 writes the shared files and the manifest, and gives the checkpoint its name."""
        for name, content in shared.items():
            durable.write_file(partial / name, content)
        sums |= {name: durable.checksum(content) for name, content in shared.items()}
        durable.write_file(partial / names.MANIFEST, durable.manifest_text(sums))
        durable.publish(partial, target)

    def _settle(self, partial: Path, target: Path, *, failed: bool) -> None:
        """Tidy up the disk of this host when all ranks have written, or one of them failed.

        A disk that rank 0 does not see still has to give the directory its name. What failed writers left
        is removed, and so are the oldest checkpoints. Trouble here costs space only, and is passed over.
        """
        try:
            if not failed and partial.exists() and not target.exists():  # a disk without rank 0
                durable.publish(partial, target)
            if self._group.rank == 0 or not (target / names.MANIFEST).exists():
                durable.sweep(self._folder)
                for old in [] if failed else sorted(self._folder.glob(names.PATTERN))[: -self._keep]:
                    durable.retire(old)
        except OSError:
            pass

    def newest(self) -> WholeCheckpoint | None:
        """The newest checkpoint that is whole, the same on all ranks; None where there is none.

        Where no checkpoint has all ranks' own files, the newest whose shared files are whole serves
        without them.
        """
        newest_first = None
        if self._group.rank == 0:
            newest_first = [path.name for path in sorted(self._folder.glob(names.PATTERN), reverse=True)]
        newest_first = json.loads(
            broadcast_bytes(self._group, json.dumps(newest_first).encode(), self._device)
        )
        damaged: list[str] = []
        candidates: list[WholeCheckpoint] = []
        for name in newest_first:
            candidate = self._read(name, tuple(damaged))
            if candidate is None:
                damaged.append(name)
                continue
            candidates.append(candidate)
            if candidate.own is not None or candidate.ranks != self._group.size:
                return candidate
            damaged.append(name)
        return candidates[0] if candidates else None

    def _read(self, name: str, passed_over: tuple[str, ...]) -> WholeCheckpoint | None:
        """One checkpoint; None where its shared files are not whole."""
        directory = self._folder / name
        files = reader.read_shared(directory) if self._group.rank == 0 else None
        sums = durable.read_manifest(directory) if files else None
        sums = json.loads(broadcast_bytes(self._group, json.dumps(sums).encode(), self._device))
        if sums is None:
            return None
        shared = {
            part: broadcast_bytes(self._group, files[part] if files else None, self._device)
            for part in names.SHARED
        }
        mine = directory / names.rank_file(self._group.rank)
        whole = mine.name in sums and durable.read_checked(mine, sums[mine.name]) is not None
        everyone = all(gather_json(self._group, whole, self._device))
        ranks = sum(part.startswith("rank-") for part in sums)
        return WholeCheckpoint(directory, shared, mine if everyone else None, ranks, passed_over)


def _is_whole(directory: Path, ranks: int) -> bool:
    """Whether that many ranks' files and the shared ones are as they were written; reads them all."""
    sums = durable.read_manifest(directory) or {}
    wanted = {*names.SHARED, *map(names.rank_file, range(ranks))}
    return wanted == set(sums) and all(
        durable.read_checked(directory / name, expected) is not None for name, expected in sums.items()
    )
