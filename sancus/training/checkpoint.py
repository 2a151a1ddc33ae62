"""Checkpoints: the state of a run at the end of an epoch, as safetensors and JSON, checksummed.

`checkpoint/epoch-00000042/` holds what is the same on all ranks, written by rank 0: `weights.safetensors`
(after the last epoch), `best.safetensors` (at the best validation epoch), `optimizer.safetensors` and
`state.json`; and `rank-00003.safetensors` of every rank, written by that rank: its histories with versions,
the copies for drift, the residuals of error feedback and its random state. `manifest.json` comes last.

Shared files reach all ranks from rank 0 over the transport. Ranks' own files are read where they were
written: on a file system that all hosts share, or on the disk of each host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from sancus.comm.base import Transport
from sancus.comm.records import broadcast_bytes, gather_json
from sancus.errors import UserError
from sancus.exchange import state as exchange_state
from sancus.training import durable
from sancus.training.trainer import Best, Trainer

SHARED = ("weights.safetensors", "best.safetensors", "optimizer.safetensors", "state.json")
PATTERN = "epoch-*"
RANDOM, CUDA_RANDOM = "random/cpu", "random/cuda"
PLAIN = "plain"
Files = dict[str, bytes]


def pack(trainer: Trainer, extra: Mapping[str, Any]) -> Files:
    """What all ranks have in common, as files in memory; `extra` is carried along in `state.json`."""
    state = {
        "next_epoch": trainer.next_epoch,
        "best": {"epoch": trainer.best.epoch, "val": trainer.best.val, "test": trainer.best.test},
        "extra": dict(extra),
    }
    optimizer = {
        f"{index}.{name}": value
        for index, slots in trainer.optimizer.state_dict()["state"].items()
        for name, value in slots.items()
        if isinstance(value, torch.Tensor)
    }
    return {
        "weights.safetensors": save_tensors(_contiguous(trainer.model.state_dict())),
        "best.safetensors": save_tensors(_contiguous(trainer.best.weights)),
        "optimizer.safetensors": save_tensors(_contiguous(optimizer)),
        "state.json": json.dumps(state, indent=1).encode(),
    }


def unpack(files: Files, trainer: Trainer) -> dict[str, Any]:
    """Put a packed state into a trainer of the same model; returns what was carried along."""
    state: dict[str, Any] = json.loads(files["state.json"])
    weights = load_tensors(files["weights.safetensors"])
    own = trainer.model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in own.items()}:
        raise UserError("the checkpoint holds another model; resume with the settings of the first run")
    trainer.model.load_state_dict(weights)
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_tensors(files["optimizer.safetensors"]).items():
        index, _, name = key.partition(".")
        slots.setdefault(int(index), {})[name] = value
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": slots, "param_groups": groups})
    trainer.next_epoch = state["next_epoch"]
    trainer.best = Best(**state["best"], weights=load_tensors(files["best.safetensors"]))
    carried: dict[str, Any] = state["extra"]
    return carried


def pack_rank(trainer: Trainer) -> bytes:
    """What only this rank has: the exchange's memory, and the random state."""
    tensors, plain = exchange_state.save(trainer.exchange.crossing)
    tensors[RANDOM] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors[CUDA_RANDOM] = torch.cuda.get_rng_state()
    return save_tensors(_contiguous(tensors), {PLAIN: json.dumps(plain)})


def unpack_rank(path: Path, trainer: Trainer) -> None:
    """Put it back; the file was found whole before."""
    with safe_open(str(path), "pt") as file:
        plain = json.loads(file.metadata()[PLAIN])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    torch.set_rng_state(tensors.pop(RANDOM))
    if CUDA_RANDOM in tensors:
        random = tensors.pop(CUDA_RANDOM)
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(random)
    exchange_state.load(trainer.exchange.crossing, tensors, plain)


def rank_file(rank: int) -> str:
    """The name of a rank's own file."""
    return f"rank-{rank:05d}.safetensors"


class Checkpoints:
    """The checkpoints of one run, which all ranks write and read together."""

    def __init__(self, folder: Path, transport: Transport, device: torch.device, keep: int = 2) -> None:
        self._folder = folder
        self._transport = transport
        self._device = device
        self._keep = keep

    def write(self, epoch: int, shared: Files | None, own: bytes) -> str | None:
        """Write the checkpoint of an epoch, all or nothing; why it could not be written, where it could not.

        `shared` is rank 0's. All ranks call this, and all get the same answer. Older checkpoints are only
        removed when this one is whole. One that is there already is left as it is: nothing happened since.
        """
        target = self._folder / f"epoch-{epoch:08d}"
        there = shared is not None and _is_whole(target, self._transport.size)
        name = "" if there else durable.fresh_name(target.name)
        told = broadcast_bytes(self._transport, name.encode(), self._device).decode()
        if not told:
            return None
        partial = self._folder / told
        rank, reason = self._transport.rank, ""
        try:
            partial.mkdir(parents=True, exist_ok=True)
            durable.write_file(partial / rank_file(rank), own)
        except OSError as error:
            reason = f"rank {rank}: {error.strerror or error}"
        records = gather_json(self._transport, [reason, durable.checksum(own)], self._device)
        reason = next(filter(None, (failure for failure, _ in records)), "")
        if shared is not None and not reason:
            sums = {rank_file(place): found for place, (_, found) in enumerate(records)}
            try:
                self._complete(partial, target, shared, sums)
            except OSError as error:
                reason = f"rank {rank}: {error.strerror or error}"
        reason = broadcast_bytes(self._transport, reason.encode(), self._device).decode()
        self._settle(partial, target, failed=bool(reason))
        return reason or None

    def _complete(self, partial: Path, target: Path, shared: Files, sums: dict[str, str]) -> None:
        """Rank 0 adds what is common, and the manifest."""
        for name, content in shared.items():
            durable.write_file(partial / name, content)
        sums |= {name: durable.checksum(content) for name, content in shared.items()}
        durable.write_file(partial / durable.MANIFEST, durable.manifest_text(sums))
        durable.publish(partial, target)

    def _settle(self, partial: Path, target: Path, *, failed: bool) -> None:
        """What this host's disk still has to do: give or take names, drop the oldest."""
        try:
            if not failed and partial.exists() and not target.exists():  # a disk without rank 0
                durable.publish(partial, target)
            if self._transport.rank == 0 or not (target / durable.MANIFEST).exists():
                durable.sweep(self._folder)
                for old in [] if failed else sorted(self._folder.glob(PATTERN))[: -self._keep]:
                    durable.retire(old)
        except OSError:
            pass

    def newest(self) -> Found | None:
        """The newest checkpoint that is whole, the same on all ranks; None where there is none.

        Where no checkpoint has all ranks' own files, the newest whose shared files are whole serves
        without them.
        """
        found = None
        if self._transport.rank == 0:
            found = [path.name for path in sorted(self._folder.glob(PATTERN), reverse=True)]
        told = broadcast_bytes(self._transport, json.dumps(found).encode(), self._device)
        damaged: list[str] = []
        candidates: list[Found] = []
        for name in json.loads(told):
            candidate = self._read(name, tuple(damaged))
            if candidate is None:
                damaged.append(name)
                continue
            candidates.append(candidate)
            if candidate.own is not None or candidate.ranks != self._transport.size:
                return candidate
            damaged.append(name)
        return candidates[0] if candidates else None

    def _read(self, name: str, passed_over: tuple[str, ...]) -> Found | None:
        """One checkpoint; None where its shared files are not whole."""
        directory = self._folder / name
        files = _read_shared(directory) if self._transport.rank == 0 else None
        sums = durable.read_manifest(directory) if files else None
        told = json.loads(broadcast_bytes(self._transport, json.dumps(sums).encode(), self._device))
        if told is None:
            return None
        shared = {
            part: broadcast_bytes(self._transport, files[part] if files else None, self._device)
            for part in SHARED
        }
        mine = directory / rank_file(self._transport.rank)
        whole = mine.name in told and durable.read_checked(mine, told[mine.name]) is not None
        everyone = all(gather_json(self._transport, whole, self._device))
        ranks = sum(part.startswith("rank-") for part in told)
        return Found(directory, shared, mine if everyone else None, ranks, passed_over)


@dataclass(frozen=True)
class Found:
    """A checkpoint to go on from."""

    directory: Path
    shared: Files
    own: Path | None  # this rank's file; None where not all ranks have theirs
    ranks: int  # how many wrote it
    passed_over: tuple[str, ...]  # newer ones that are damaged

    def describe(self) -> str:
        """Which it is, in a line."""
        note = f"; {', '.join(self.passed_over)} is damaged and was passed over" if self.passed_over else ""
        return f"resumed from {self.directory}{note}"


def read_newest(folder: Path) -> tuple[Files, str]:
    """The shared files of the newest checkpoint that has them whole, for one process; and which it was."""
    damaged: list[str] = []
    for directory in sorted(folder.glob(PATTERN), reverse=True):
        files = _read_shared(directory)
        if files is not None:
            return files, Found(directory, files, None, 0, tuple(damaged)).describe()
        damaged.append(directory.name)
    raise UserError(f"no whole checkpoint in {folder}; start again without --resume")


def _is_whole(directory: Path, ranks: int) -> bool:
    """Whether that many ranks' files and the shared ones are as they were written; reads them all."""
    sums = durable.read_manifest(directory) or {}
    names = {*SHARED, *map(rank_file, range(ranks))}
    return names == set(sums) and all(
        durable.read_checked(directory / name, expected) is not None for name, expected in sums.items()
    )


def _read_shared(directory: Path) -> Files | None:
    sums = durable.read_manifest(directory)
    if sums is None or not set(SHARED) <= set(sums):
        return None
    files: Files = {}
    for name in SHARED:
        content = durable.read_checked(directory / name, sums[name])
        if content is None:
            return None
        files[name] = content
    return files


def _contiguous(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
