"""Checkpoints: safetensors and JSON, checksummed, written beside and renamed; the newest two are kept.

`checkpoint/epoch-00000042/` holds `weights.safetensors` (after the last epoch), `best.safetensors` (at the
best validation epoch), `optimizer.safetensors` and `state.json`; `manifest.json`, written last, has the
xxhash of each. A directory without a valid manifest is ignored. Only rank 0 touches the disk; the bytes
reach the other ranks over the transport.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from sancus.errors import UserError
from sancus.training.trainer import Best, Trainer

KEEP = 2
Files = dict[str, bytes]


def pack(trainer: Trainer, extra: Mapping[str, Any]) -> Files:
    """A trainer's state as files in memory; `extra` is carried along in `state.json`."""
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


def write(folder: Path, epoch: int, files: Files) -> Path:
    """Write files as the checkpoint of an epoch, all or nothing, and drop the oldest."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"epoch-{epoch:08d}"
    partial = Path(tempfile.mkdtemp(dir=folder, prefix=".partial-"))
    try:
        for name, content in files.items():
            _write_synced(partial / name, content)
        checksums = {name: xxhash.xxh3_128_hexdigest(content) for name, content in files.items()}
        _write_synced(partial / "manifest.json", json.dumps(checksums, indent=1).encode())
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in sorted(folder.glob("epoch-*"))[:-KEEP]:
        shutil.rmtree(old)
    return target


def read_newest(folder: Path) -> tuple[Files, str]:
    """The newest checkpoint that is whole, and a line that says which it was."""
    damaged: list[str] = []
    for target in sorted(folder.glob("epoch-*"), reverse=True):
        files = _read(target)
        if files is not None:
            note = f"; {', '.join(damaged)} is damaged and was passed over" if damaged else ""
            return files, f"resumed from {target}{note}"
        damaged.append(target.name)
    raise UserError(f"no whole checkpoint in {folder}; start again without --resume")


def _read(target: Path) -> Files | None:
    try:
        checksums = json.loads((target / "manifest.json").read_text())
        files = {name: (target / name).read_bytes() for name in checksums}
    except (OSError, ValueError):
        return None
    whole = all(xxhash.xxh3_128_hexdigest(files[name]) == checksums[name] for name in checksums)
    return files if whole else None


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _contiguous(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
