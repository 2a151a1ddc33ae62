"""The part that the programs of all peers share: read the graph, train, time, report (torch and numpy only).

A peer gives `make(graph, flags) -> (model, forward)`; `forward()` are the logits of all nodes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

Forward = Callable[[], torch.Tensor]
Make = Callable[[dict[str, torch.Tensor], argparse.Namespace], tuple[torch.nn.Module, Forward]]


def flags() -> argparse.Namespace:
    """The settings, the same for all peers and for us."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graph", type=Path)
    parser.add_argument("--model", choices=["gcn", "sage"], default="gcn")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def read_graph(path: Path) -> dict[str, torch.Tensor]:
    """CSR without self-loops, features, labels, masks."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def widths(graph: dict[str, torch.Tensor], settings: argparse.Namespace) -> list[int]:
    """Columns of the input and of every layer's output."""
    hidden = [settings.hidden] * (settings.layers - 1)
    return [graph["x"].shape[1], *hidden, int(graph["y"].max()) + 1]


def main(make: Make, versions: dict[str, str]) -> None:
    """Train, and print one line of JSON: seconds of every epoch, scores after the last."""
    settings = flags()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    graph = read_graph(settings.graph)
    model, forward = make(graph, settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    labels, train = graph["y"], graph["train_mask"].nonzero().flatten()
    seconds: list[float] = []
    for _ in range(settings.epochs):
        start = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(forward()[train], labels[train])
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    scores = _scores(model, forward, graph)
    print(json.dumps({"seconds": seconds, **scores, "versions": versions}), flush=True)


def _scores(model: torch.nn.Module, forward: Forward, graph: dict[str, torch.Tensor]) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        right = forward().argmax(dim=1) == graph["y"]
    return {split: right[graph[f"{split}_mask"]].float().mean().item() for split in ("val", "test")}
