"""What every candidate would cost, before any of them is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sancus.advise.candidates import EXACT, Candidate
from sancus.advise.estimate import Estimate, Machine, estimate
from sancus.advise.sends import travels_later
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.base import Assignment
from sancus.plugins import build
from sancus.shards.partition import assign_nodes
from sancus.staleness import POLICIES
from sancus.staleness.base import Policy

Objective = Literal["time", "bytes", "memory"]


@dataclass(frozen=True)
class Cost:
    """An estimate, and what it cannot know of a candidate without a trial."""

    estimate: Estimate
    by_drift: bool = False  # policies look at the data: only a trial shows how often they send
    later: bool = False  # payloads travel while ranks compute

    def of(self, objective: Objective, sent: float | None = None) -> float:
        """Seconds or bytes of an epoch, or bytes of memory; `sent` are the bytes of an epoch of a trial."""
        if objective == "memory":
            return self.estimate.memory_bytes
        known = self.estimate.all_bytes
        real = sent if sent is not None and self.by_drift else known
        if objective == "bytes":
            return real
        compute = self.estimate.compute_seconds
        comm = self.estimate.comm_seconds * (real / known if known else 1.0)
        return max(compute, comm) if self.later else compute + comm


def costs_of(
    candidates: Sequence[Candidate],
    graph: Graph,
    config_of: Callable[[Candidate], Config],
    ranks: int,
    machine: Machine,
) -> tuple[dict[Candidate, Cost], dict[Candidate, str]]:
    """The cost of every candidate; and of those that do not go with the user's flags, the reason."""
    costs: dict[Candidate, Cost] = {}
    left_out: dict[Candidate, str] = {}
    assignments: dict[str, Assignment] = {}
    for candidate in candidates:
        try:
            config = config_of(candidate)
            spec = config.factors.partitioner
            if spec not in assignments:
                partitioner = build("partitioner", PARTITIONERS, spec)
                assignments[spec] = assign_nodes(partitioner, graph, ranks, spec)
            known = estimate(graph, config, ranks, machine, assignments[spec])
        except UserError as error:
            if candidate.name == EXACT:
                raise
            left_out[candidate] = str(error)
            continue
        specs = (config.factors.staleness, config.factors.backward)
        policies: list[Policy] = [build("policy", POLICIES, spec) for spec in specs]
        by_drift = any(policy.drift_norm is not None for policy in policies)
        costs[candidate] = Cost(known, by_drift, all(travels_later(spec) for spec in specs))
    return costs, left_out
