"""Bounded staleness in one process: p virtual ranks, dense matrices, rules written out by hand.

What p real ranks with histories must equal. `Rule` restates each policy in its own words; nothing of
`staleness` or `sancus.exchange` is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

Key = tuple[int, str]  # layer, direction


@dataclass(frozen=True)
class Rule:
    """A policy in words: `kind` and its number."""

    kind: str
    number: float = 0.0

    def sends(self, epoch: int, owner: int, held: int, drift: float) -> bool:
        """Whether `owner` sends in `epoch`, when its receivers hold epoch `held`'s rows."""
        match self.kind:
            case "always":
                return True
            case "epoch-fixed":
                return epoch % (int(self.number) + 1) == 0
            case "epoch-adaptive":
                period = int(self.number) + 1
                return epoch >= owner % period and (epoch - owner % period) % period == 0
            case "variation-gap":
                return drift > self.number or epoch - held > 20
            case "never":
                return False
        raise AssertionError(self.kind)


@dataclass
class Simulation:
    """A graph in p blocks; every aggregation goes through `aggregate`."""

    a: torch.Tensor  # [N, N]
    blocks: list[torch.Tensor]  # node ids of each rank
    rules: dict[str, Rule]
    plan: str
    clip: float | None = None
    epoch: int = 0
    held: dict[Key, torch.Tensor] = field(default_factory=dict)
    version: dict[tuple[int, str, int], int] = field(default_factory=dict)
    log: dict[tuple[int, int, str, int], bool] = field(default_factory=dict)

    def aggregate(self, h: torch.Tensor, layer: int, direction: str) -> torch.Tensor:
        """`Â h` or `Âᵀ h` where a rank sees others' rows as they were last sent."""
        matrix = self.a if direction == "forward" else self.a.T
        rule, key = self.rules[direction], (layer, direction)
        if direction == "backward" and self.clip is not None:
            h = h.clone()
            for block in self.blocks:
                limit = self.clip * len(self.blocks) ** 0.5
                if h[block].norm() > limit:
                    h[block] *= limit / h[block].norm()
        first = key not in self.held
        held = self.held.setdefault(key, torch.zeros_like(h))
        for owner, block in enumerate(self.blocks):
            send = first and rule.kind != "drop"
            if not first and rule.kind != "drop":
                drift = self.drift(h, held, owner, direction)
                send = rule.sends(self.epoch, owner, self.version[layer, direction, owner], drift)
            if send:
                held[block] = h[block]
                self.version[layer, direction, owner] = self.epoch
            self.log[self.epoch, layer, direction, owner] = send
        out = torch.zeros_like(h)
        for own in self.blocks:
            seen = held.clone()
            seen[own] = h[own]
            out[own] = matrix[own] @ seen
        return out

    def drift(self, h: torch.Tensor, held: torch.Tensor, owner: int, direction: str) -> float:
        """Mean absolute difference of what the owner would send now and what was last sent."""
        block, parts = self.blocks[owner], []
        if self.plan == "block":
            parts.append((h - held)[block].abs().flatten())
        else:
            for receiver, other in enumerate(self.blocks):
                if receiver == owner:
                    continue
                if direction == "forward":
                    needed = (self.a[other][:, block] != 0).any(dim=0)
                    parts.append((h - held)[block][needed].abs().flatten())
                else:
                    cut = self.a[block][:, other]
                    needed = (cut != 0).any(dim=0)
                    parts.append((cut[:, needed].T @ (h - held)[block]).abs().flatten())
        joined = torch.cat(parts)
        return joined.mean().item() if len(joined) else 0.0


class Natural(torch.autograd.Function):
    """`T = Â H`; autograd around it decides what travels back."""

    @staticmethod
    def forward(ctx: Any, simulation: Simulation, layer: int, h: torch.Tensor) -> torch.Tensor:
        ctx.simulation, ctx.layer = simulation, layer
        return simulation.aggregate(h, layer, "forward")

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, torch.Tensor]:
        return None, None, ctx.simulation.aggregate(gradient, ctx.layer, "backward")


class Cagnet(torch.autograd.Function):
    """`Z = (Â H) W`; `δ` travels back (eq. 4-5)."""

    @staticmethod
    def forward(
        ctx: Any, simulation: Simulation, layer: int, h: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        ctx.simulation, ctx.layer = simulation, layer
        ctx.save_for_backward(h, weight)
        return simulation.aggregate(h, layer, "forward") @ weight

    @staticmethod
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[None, None, torch.Tensor, torch.Tensor]:
        h, weight = ctx.saved_tensors
        g = ctx.simulation.aggregate(delta, ctx.layer, "backward")
        return None, None, g @ weight.T, h.T @ g


def train_gcn(
    simulation: Simulation,
    x: torch.Tensor,
    labels: torch.Tensor,
    train: torch.Tensor,
    weights: dict[str, torch.Tensor],
    *,
    savings: bool,
    epochs: int,
    lr: float,
    weight_decay: float,
) -> list[float]:
    """Losses of a GCN trained by SGD under the simulation's rules."""
    weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    depth = len(weights) // 2
    constant = simulation.a @ x
    if simulation.rules["forward"].kind == "drop":
        constant = torch.zeros_like(x)
        for block in simulation.blocks:
            constant[block] = simulation.a[block][:, block] @ x[block]
    kinds = [simulation.rules[direction].kind for direction in ("forward", "backward")]
    one_way = kinds[0] != "drop" and kinds[1] == "drop"  # rows are constants: they meet the `W` of now
    losses = []
    for epoch in range(epochs):
        simulation.epoch = epoch
        h = x.clone().requires_grad_()
        for layer in range(depth):
            w, bias = weights[f"layers.{layer}.weight"], weights[f"layers.{layer}.bias"]
            if savings and layer == 0:
                z = constant @ w
            elif one_way:
                z = Natural.apply(simulation, layer, h) @ w
            elif not savings:
                z = Cagnet.apply(simulation, layer, h, w)
            elif w.shape[0] < w.shape[1]:
                z = Natural.apply(simulation, layer, h) @ w
            else:
                z = Natural.apply(simulation, layer, h @ w)
            h = z + bias if layer == depth - 1 else torch.relu(z + bias)
        loss = F.cross_entropy(h[train], labels[train])
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for tensor, gradient in zip(weights.values(), gradients, strict=True):
                tensor -= lr * (gradient + weight_decay * tensor)
    return losses
