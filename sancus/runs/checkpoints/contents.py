"""Checkpoints: the state of a run at the end of an epoch, as safetensors and JSON, checksummed.

`checkpoint/epoch-00000042/` holds what is the same on all ranks, written by rank 0: `weights.safetensors`
(after the last epoch), `best.safetensors` (at the best validation epoch), `optimizer.safetensors` and
`state.json`; and `rank-00003.safetensors` of every rank, written by that rank: its histories with versions,
the copies for drift, the residuals of error feedback, what its parameter codec and its schedule remember,
its random state, and its optimiser where each rank steps for itself (`--parameters average`; the shared one
is rank 0's then).
`manifest.json` comes last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from sancus.errors import UserError
from sancus.exchange.state import State
from sancus.runs.checkpoints.reader import FORMAT, Files, check_format
from sancus.training.evaluation import Best
from sancus.training.trainer import Trainer

RANDOM = "random/"  # before the type of a device whose random state it is
OPTIMIZER, SCHEDULE = "optimizer/", "schedule/"  # before the names of a rank's own
PARAMETERS = "parameters/"  # before the names of what a parameter codec remembers
PLAIN = "plain"


def pack(trainer: Trainer, extra: Mapping[str, Any]) -> Files:
    """What all ranks have in common, as files in memory; `extra` is carried along in `state.json`.

    All ranks call it: each may hold some of the weights.
    """
    state = {
        "format": FORMAT,
        "next_epoch": trainer.next_epoch,
        "best": {"epoch": trainer.best.epoch, "val": trainer.best.val, "test": trainer.best.test},
        "extra": dict(extra),
    }
    return {
        "weights.safetensors": _joined(trainer, trainer.model.state_dict()),
        "best.safetensors": _joined(trainer, trainer.best.weights),
        "optimizer.safetensors": save_tensors(_contiguous(_optimizer_of_all(trainer))),
        "state.json": json.dumps(state, indent=1).encode(),
    }


def _joined(trainer: Trainer, weights: Mapping[str, torch.Tensor]) -> bytes:
    """Weights of all ranks, from what each of them trains."""
    schedule = trainer.schedule
    return save_tensors(
        _contiguous(schedule.collect({name: value for name, value in weights.items() if schedule.owns(name)}))
    )


def _optimizer_of_all(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What the optimisers of all ranks remember, from what each of them trains."""
    names = _names_by_index(trainer)
    own = {
        name: value
        for name, value in _optimizer_tensors(trainer).items()
        if trainer.schedule.owns(names[int(name.partition(".")[0])])
    }
    return trainer.schedule.collect(own)


def _names_by_index(trainer: Trainer) -> list[str]:
    """The parameters in the order in which the optimiser numbers them."""
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    return [names[id(p)] for group in trainer.optimizer.param_groups for p in group["params"]]


def unpack(files: Files, trainer: Trainer) -> dict[str, Any]:
    """Put a packed state into a trainer of the same model; returns what was carried along."""
    check_format(files)
    state: dict[str, Any] = json.loads(files["state.json"])
    weights = load_tensors(files["weights.safetensors"])
    own = trainer.model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in own.items()}:
        raise UserError("the checkpoint holds another model; resume with the settings of the first run")
    trainer.model.load_state_dict(weights)
    _fill_optimizer(trainer, load_tensors(files["optimizer.safetensors"]))
    trainer.next_epoch = state["next_epoch"]
    trainer.best = Best(**state["best"], weights=load_tensors(files["best.safetensors"]))
    carried: dict[str, Any] = state["extra"]
    return carried


def pack_rank(trainer: Trainer) -> bytes:
    """What only this rank has: the exchange's memory, the random state, and an optimiser of its own."""
    state = trainer.exchange.crossing.state()
    tensors = dict(state.tensors)
    if not trainer.sync.replicated:
        tensors |= {OPTIMIZER + name: value for name, value in _optimizer_tensors(trainer).items()}
    tensors |= {SCHEDULE + name: value for name, value in trainer.schedule.state().items()}
    tensors |= {PARAMETERS + name: value for name, value in trainer.sync.codec.state().items()}
    tensors[f"{RANDOM}cpu"] = torch.get_rng_state()
    device = _device_of(trainer)
    if device.type != "cpu":
        tensors[f"{RANDOM}{device.type}"] = torch.get_device_module(device).get_rng_state(device)
    return save_tensors(_contiguous(tensors), {PLAIN: json.dumps(state.plain)})


def schedule_state(content: bytes) -> dict[str, torch.Tensor]:
    """What the schedule of a rank remembered, from what `pack_rank` packed."""
    return _take(load_tensors(content), SCHEDULE)


def unpack_rank(path: Path, trainer: Trainer) -> None:
    """Put back what `pack_rank` packed, from a file that the caller has found to be whole."""
    with safe_open(str(path), "pt") as file:
        plain = json.loads(file.metadata()[PLAIN])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    device, random = _device_of(trainer), _take(tensors, RANDOM)
    torch.set_rng_state(random.pop("cpu"))
    if device.type in random:
        torch.get_device_module(device).set_rng_state(random[device.type], device)
    own = _take(tensors, OPTIMIZER)
    if own:
        _fill_optimizer(trainer, own)
    trainer.sync.codec.restore(_take(tensors, PARAMETERS), device)
    trainer.schedule.restore(_take(tensors, SCHEDULE))
    trainer.exchange.crossing.restore(State(tensors, plain))


def _device_of(trainer: Trainer) -> torch.device:
    return next(trainer.model.parameters()).device


def _take(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """What is named with a prefix, without it; `tensors` has it no longer."""
    return {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}


def _optimizer_tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What the optimiser remembers, named `parameter.slot`."""
    return {
        f"{index}.{name}": value
        for index, slots in trainer.optimizer.state_dict()["state"].items()
        for name, value in slots.items()
        if isinstance(value, torch.Tensor)
    }


def _fill_optimizer(trainer: Trainer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back what `_optimizer_tensors` gave."""
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        slots.setdefault(int(index), {})[name] = value
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": slots, "param_groups": groups})


def _contiguous(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
