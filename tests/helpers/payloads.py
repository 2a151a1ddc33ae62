"""Payload by payload in one process: what a receiver holds of every owner, after codec, feedback and delay.

The plan's own maps make and add payloads (the law proves them); who sends, what a codec's random numbers are,
when a payload is used and what error feedback keeps is written out by hand.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash

from sancus.codecs import CODECS
from sancus.codecs.base import Moment
from sancus.exchange.current_plan import DRAW
from sancus.exchange.dropout import DropoutKey
from sancus.graphs.shards import open_shard
from sancus.kernels import KERNELS
from sancus.plans import PLANS
from sancus.plans.base import Leg, Plan, Workbench
from sancus.plans.drawn import Drawn
from sancus.plugins import build
from tests.helpers.simulation import Simulation

BENCH = Workbench(build("kernel", KERNELS, "torch"), torch.float64, torch.device("cpu"))
Place = tuple[int, str, int, int]  # layer, direction, owner, receiver


def plans_of(folder: Path, ranks: int, plan: str, normalisation: Any) -> list[Plan]:
    """The plan of every rank."""
    operators = [open_shard(folder, rank).operator(normalisation) for rank in range(ranks)]
    return [build("plan", PLANS, plan, operator=operator, bench=BENCH) for operator in operators]


@dataclass
class PayloadSimulation(Simulation):
    """A simulation whose ranks hold decoded payloads, one for each owner and receiver."""

    plans: list[Plan] = field(default_factory=list)
    codecs: dict[str, str] = field(default_factory=dict)
    feedback: bool = False
    epochs: int = 1
    seed: int = 0
    decoded: dict[Place, torch.Tensor] = field(default_factory=dict)
    travelling: dict[Place, torch.Tensor] = field(default_factory=dict)
    residual: dict[Place, torch.Tensor] = field(default_factory=dict)

    def aggregate(self, h: torch.Tensor, layer: int, direction: str) -> torch.Tensor:
        """`Â h` or `Âᵀ h` where others' payloads are as they were last decoded."""
        ranks, legs, rule = range(len(self.blocks)), self._legs(direction), self.rules[direction]
        answers = [self._answer(rule.kind, int(rule.number), layer, direction, owner) for owner in ranks]
        out = torch.zeros_like(h)
        for receiver in ranks:
            total = legs[receiver].diagonal.apply(h[self.blocks[receiver]])
            for owner in ranks:
                if owner == receiver or answers[owner] == "drop":
                    continue
                place = (layer, direction, owner, receiver)
                if place in self.travelling:
                    self.decoded[place] = self.travelling.pop(place)
                if answers[owner] != "skip":
                    payload = legs[owner].make[receiver].apply(h[self.blocks[owner]])
                    arrived = self._through_the_wire(payload, legs[owner], place)
                    (self.travelling if answers[owner] == "later" else self.decoded)[place] = arrived
                legs[receiver].add[owner].add(self.decoded[place], total)
            out[self.blocks[receiver]] = total
        return out

    def _legs(self, direction: str) -> list[Leg]:
        """The legs of every rank in this epoch."""
        key = DropoutKey(self.seed, self.epoch, DRAW).mixed()
        plans = [plan.at(key) if isinstance(plan, Drawn) else plan for plan in self.plans]
        return [getattr(plan, direction) for plan in plans]

    def _answer(self, kind: str, number: int, layer: int, direction: str, owner: int) -> str:
        key = (layer, direction, owner)
        started = key in self.version
        if kind == "drop":
            answer = "drop"
        elif not started:
            answer = "send"
        elif kind == "pipelined":
            answer = "later"
            if number and self.epoch % number == 0:
                answer = "send"
            elif number and self.epoch % number == number - 1:
                answer = "skip"
        elif kind == "periodic":
            answer = "later" if self.epoch % number == 0 else "skip"
        else:
            answer = "send" if self.rules[direction].sends(self.epoch, owner, 0, 0.0) else "skip"
        if answer in ("send", "later"):
            self.version[key] = self.epoch
        return answer

    def _through_the_wire(self, payload: torch.Tensor, leg: Leg, place: Place) -> torch.Tensor:
        layer, direction, owner, receiver = place
        if not len(payload):
            return payload
        kept = (layer, direction, owner, -1 if leg.broadcast else receiver)
        side = ("forward", "backward").index(direction)
        words = struct.pack("<6q", self.seed, self.epoch, layer, side, owner, kept[-1])
        moment = Moment(xxhash.xxh3_64_intdigest(words) >> 1, self.epoch / (self.epochs - 1))
        codec = build("codec", CODECS, self.codecs[direction])
        if leg.broadcast and receiver != min(r for r in range(len(self.blocks)) if r != owner):
            first = 0 if owner else 1
            return (self.travelling if (layer, direction, owner, first) in self.travelling else self.decoded)[
                layer, direction, owner, first
            ]
        meant = payload + self.residual.get(kept, 0.0) if self.feedback and not codec.lossless else payload
        wire = codec.encode(meant, moment, leg.weight[receiver])
        arrived: torch.Tensor = codec.decode(wire, *payload.shape, payload.dtype, moment.stage)
        left = meant - arrived
        for row in range(len(left)):
            if left[row].norm() > payload[row].norm():
                left[row] *= payload[row].norm() / left[row].norm()
        self.residual[kept] = left
        return arrived.clone()
