"""Memory that is free here, and the least that a run can do with. Imports no torch.

A run that cannot fit is refused before anything is loaded; one that may fit is tried. `sancus estimate` says
how much a run is likely to need.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.models import MODELS

ITEM_BYTES = {"float32": 4, "float64": 8}
INDEX_BYTES = 4  # of an entry of the adjacency, at least
UNLIMITED = 1 << 60


def check_memory(manifest: dict[str, Any], config: Config, ranks: int) -> None:
    """Refuse a run of so many ranks on this host that surely needs more memory than is free."""
    need, free = least_bytes(manifest, config), free_bytes()
    if free is not None and need > free:
        raise UserError(
            f"{manifest['graph']['name']} on {ranks} {'rank' if ranks == 1 else 'ranks'} of this host needs "
            f"at least {need / 1e9:,.1f} GB of memory, but {free / 1e9:,.1f} GB are free; "
            "use more hosts, fewer layers or a smaller --hidden (see sancus estimate)"
        )


def least_bytes(manifest: dict[str, Any], config: Config) -> int:
    """What all ranks together hold at once, whatever they do: features, adjacency, every layer's output."""
    graph = manifest["graph"]
    item = ITEM_BYTES[config.training.dtype]
    total = graph["edges"] * (INDEX_BYTES + item)
    if not graph["sparse_features"]:
        total += graph["nodes"] * graph["features"] * item
    if config.model in MODELS and not config.training.inductive:
        widths = config.shape.widths(graph["features"], config.output_width(graph["classes"]))
        total += graph["nodes"] * sum(widths[1:]) * item
    return int(total)


def free_bytes(system: Path = Path("/")) -> int | None:
    """Memory and swap that processes may still take here, within the limits of their cgroups (Linux)."""
    try:
        lines = (system / "proc/meminfo").read_text().splitlines()
        figures = {
            name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)
        }
        free = figures["MemAvailable"] + figures.get("SwapFree", 0)
    except (OSError, LookupError, ValueError):
        return None
    return min([free, *_left_in_cgroups(system)])


def _left_in_cgroups(system: Path) -> Iterator[int]:
    """What is left of the limit of every cgroup that this process is in; files in the cache are free."""
    for folder, limit, usage, reclaimable in _cgroups(system):
        try:
            most = int((folder / limit).read_text())
            used = int((folder / usage).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = int(dict(lines).get(reclaimable, 0))
        except (OSError, ValueError):  # no such file, or no limit: "max"
            continue
        if most < UNLIMITED:
            yield max(0, most - used + files)


def _cgroups(system: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Folders of the memory controller, from this process's own to the top: version 2, then version 1."""
    try:
        lines = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, names = "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        place = Path(path.lstrip("/"))
        for folder in (place, *place.parents):
            yield system / top / folder, *names
