"""The module that a run trains, from its settings and what is known of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sancus.config.settings import Config
from sancus.models.build import Model, make_model
from sancus.models.labels import WithLabels


def make_module(config: Config, graph: Mapping[str, Any], model: Model) -> nn.Module:
    """The model of a run for a graph, as its manifest describes it: seeded, so the same on all ranks."""
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        module = make_model(model, graph["features"], config.output_width(graph["classes"]), config.shape)
        if config.training.label_rate:
            sizes = {"classes": graph["classes"], "features": graph["features"]}
            module = WithLabels(module, rate=config.training.label_rate, **sizes)
    return module.to(dtype=getattr(torch, config.training.dtype))
