"""From a spec, a class or a finished module to the model of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from sancus.errors import UserError
from sancus.models import MODELS
from sancus.models.contract import construct, filled_arguments, is_pyg_model
from sancus.models.pyg_model import PyGModel
from sancus.models.settings import ModelSettings
from sancus.plugins import load, parse, settings_of

Model = str | nn.Module | Callable[..., nn.Module]


def find_model(model: Model) -> nn.Module | Callable[..., Any]:
    """The class of a spec; a class or a finished module as it is."""
    return load("model", parse("model", MODELS, model)) if isinstance(model, str) else model


def make_model(model: Model, features: int, classes: int, settings: ModelSettings) -> nn.Module:
    """A module whose `forward(x, exchange)` gives logits `[n_i, C]`."""
    target = find_model(model)
    if isinstance(target, nn.Module):
        network: Any = target
    elif isinstance(model, str):
        spec = parse("model", MODELS, model)
        own = settings_of("model", spec, filled_arguments(target))
        network = _construct(target, features, classes, settings, own, ours=spec.name in MODELS)
    else:
        network = _construct(target, features, classes, settings, {}, ours=False)
    name = model if isinstance(model, str) else type(network).__name__
    if not isinstance(network, nn.Module):
        raise UserError(f"model {name!r} is a {type(network).__name__}; it must be a torch.nn.Module")
    if not any(True for _ in network.parameters()):
        raise UserError(f"model {name!r} has no parameters; assign layers to attributes, not to plain lists")
    return PyGModel(network) if is_pyg_model(network) else network


def _construct(
    target: Callable[..., Any],
    features: int,
    classes: int,
    settings: ModelSettings,
    own: dict[str, Any],
    *,
    ours: bool,
) -> Any:
    try:
        return construct(target, features, classes, settings, own)
    except UserError:
        raise
    except Exception as error:
        if ours:
            raise
        name = getattr(target, "__name__", str(target))
        raise UserError(f"model {name!r}: {type(error).__name__}: {error}") from error
