"""A device in pure Python, for code that must know no device: host memory behind a wrapper.

Tensors of `mock:0` have no memory that torch can reach: a `DeviceTensor` keeps a host tensor, and every
operator runs on that. An operator that is given both kinds is an error, as on a GPU. `WAITS` counts what
would make a host wait for a GPU: copies to the host, and results whose size depends on values. `install()`
cannot be undone, so it is for processes of their own (`tests/helpers/processes.py`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "mock"
DEVICE = "mock:0"
WAITS: Counter[str] = Counter()  # by operator
BETWEEN = ("aten::copy_", "aten::_to_copy")  # may be given tensors of both
BY_VALUE = ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_consecutive")
ATEN = torch.ops.aten
ARANGE = (ATEN.arange.default, ATEN.arange.start, ATEN.arange.start_step)
OWN = (ATEN.copy_.default, ATEN._to_copy.default, *ARANGE)  # that torch would make of others
_library: list[torch.library.Library] = []


class _Backend:
    """What torch asks of `torch.mock`: one device, whose random numbers are the host's."""

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """The host's numbers have their own seed."""

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


class DeviceTensor(torch.Tensor):
    """A tensor of the device; `raw` is on the host."""

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> DeviceTensor:
        dense = raw.layout == torch.strided
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.shape,
            dtype=raw.dtype,
            device=DEVICE,
            strides=raw.stride() if dense else None,
            storage_offset=raw.storage_offset() if dense else None,
        )
        made.raw = raw
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"DeviceTensor({self.raw})"

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: object, arguments: Any = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(operator, arguments, dict(keywords or {}))


def install() -> torch.device:
    """The device exists from now on, in this process."""
    if not _library:
        _setup_privateuseone_for_python_backend(NAME, _Backend())
        library = torch.library.Library("_", "IMPL")
        library.fallback(_fallback, "PrivateUse1")
        own = torch.library.Library("aten", "IMPL")
        for operator in OWN:
            own.impl(operator, functools.partial(_fallback, operator), "PrivateUse1")
        _library.extend((library, own))
    return torch.device(DEVICE)


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor of the device."""
    assert isinstance(tensor, DeviceTensor)
    return tensor.raw


def _fallback(operator: Any, *arguments: Any, **keywords: Any) -> Any:
    """Operators without a tensor of the device: those that make one."""
    return _run(operator, arguments, keywords)


def _run(operator: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    name = operator.name().partition(".")[0]
    everything = tree_leaves((arguments, keywords))
    wrapped = {id(leaf.raw): leaf for leaf in everything if isinstance(leaf, DeviceTensor)}
    if wrapped and name not in BETWEEN and any(map(_on_host, everything)):
        raise RuntimeError(f"{name}: a tensor of the host meets one of the device")
    to_host = _to_host(name, arguments, keywords)
    if to_host or name in BY_VALUE or (name == "aten::index" and _has_mask(arguments[1])):
        WAITS[name] += 1
    plain, named = tree_map(_unwrapped, (tuple(arguments), keywords))
    out = operator(*plain, **named)
    assert all(leaf.shape == leaf.raw.shape for leaf in wrapped.values()), f"{name} has changed a size"
    return out if to_host else tree_map(functools.partial(_wrapped, wrapped), out)


def _on_host(leaf: Any) -> bool:
    """Whether it is a tensor of the host that no device would take: numbers it takes."""
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor) and leaf.dim() > 0


def _to_host(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether the result, or what is written, is on the host."""
    if name == "aten::_local_scalar_dense":
        return True
    if name == "aten::copy_":
        return not isinstance(arguments[0], DeviceTensor)
    device = keywords.get("device")
    return device is not None and torch.device(device).type != NAME


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _unwrapped(leaf: Any) -> Any:
    if isinstance(leaf, DeviceTensor):
        return leaf.raw
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def _wrapped(wrapped: Mapping[int, DeviceTensor], leaf: Any) -> Any:
    """What was written in place stays the tensor that it was."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, DeviceTensor):
        return leaf
    return wrapped[id(leaf)] if id(leaf) in wrapped else DeviceTensor(leaf)
