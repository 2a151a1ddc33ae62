"""The verbs that look before anything is trained: `partition`, `estimate`, `probe` and `data info`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sancus.cli.printing import print_line, print_table
from sancus.cli.train import read_flags
from sancus.errors import UserError


def partition(
    data: str,
    /,
    *,
    parts: int,
    partitioner: Annotated[list[str], Parameter(consume_multiple=True)] | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    row_order: Literal["auto", "given", "rcm", "metis"] = "auto",
    chunks: int = 1,
    compare: bool = False,
) -> None:
    """Cut a graph into shards on disk, which any later run can train from; or compare partitioners.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, a file, a folder, or a name.
    parts
        Number of parts: the ranks that will train.
    partitioner
        Who owns which rows; with --compare several, default: all.
    out
        Directory for the shards: sancus train DIR uses them.
    overwrite
        Replace the shards that --out holds already.
    row_order
        Rows inside a block: as given, or reordered for the cache; auto: by metis where the hit rate rises.
    chunks
        Sort the rows of every part by so many chunks, for --schedule pipeline.
    compare
        Print quality and cost of partitioners side by side; writes nothing.
    """
    from sancus.console.speaker import speaker
    from sancus.datasets.open import check_source
    from sancus.partitioners import PARTITIONERS
    from sancus.shards import partition as parting

    if parts < 1:
        raise UserError(f"--parts {parts}: must be at least 1")
    if chunks < 1:
        raise UserError(f"--chunks {chunks}: must be at least 1")
    check_source(data)
    if compare:
        if out is not None:
            raise UserError("--compare writes nothing; leave --out out, or --compare")
        with closing(speaker()) as say:
            table = parting.compare(data, partitioner or list(PARTITIONERS), parts, say)
        print_table(table)
        return
    if out is None:
        raise UserError("--out is missing: the directory for the shards (or --compare, which writes nothing)")
    if partitioner is not None and len(partitioner) != 1:
        raise UserError(f"--partitioner {' '.join(partitioner)}: give one, or add --compare")
    spec = partitioner[0] if partitioner else "metis"
    with closing(speaker()) as say:
        facts = parting.partition(
            data, spec, parts, out, say, overwrite=overwrite, row_order=row_order, chunks=chunks
        )
    rows = ", ".join(f"{plan} {count:,}" for plan, count in facts["payload_rows"].items())
    print_line(f"cut {100 * facts['edge_cut_share']:.1f} %, rows that cross in one aggregation: {rows}")
    print_line(f"shards in {out}; train with: sancus train {out}")


def estimate(
    data: str,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ranks: Annotated[list[int], Parameter(consume_multiple=True)],
    link: str = "10Gbit",
    latency: float = 50e-6,
    spmm: float | None = None,
    gemm: float | None = None,
    device_memory: str | None = None,
) -> None:
    """Tell what a run would need before anything is trained: memory, bytes and time, for any number of ranks.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, a file, a folder, or a name.
    flags
        Any flags of sancus train: --preset sancus-e:1 --hidden 256 ….
    ranks
        Numbers of ranks, also beyond this machine: --ranks 2 4 8 16 64.
    link
        Speed of the network between ranks, e.g. 10Gbit or 1.2GB (a second), or nvlink3, nvlink4, pcie4,
        pcie5, infiniband-hdr, infiniband-ndr.
    latency
        Seconds that a message takes beside its bytes.
    spmm
        Multiply-adds a second of a sparse product on one rank; default: measured here.
    gemm
        Multiply-adds a second of a dense product on one rank; default: measured here.
    device_memory
        Memory of a GPU, e.g. 80GB: a number of ranks that needs more is an error.
    """
    from sancus.advise.links import check_device_memory
    from sancus.datasets.open import check_source, open_graph
    from sancus.runs.check import check

    check_source(data)
    _, settings = read_flags([data, *flags])
    check(data, settings, launched=True)
    from sancus.advise import estimate as estimating
    from sancus.advise.estimate_batches import foresee

    machine = estimating.probe(link, latency, spmm, gemm)
    graph = open_graph(data)
    estimates = [foresee(graph, settings, count, machine) for count in ranks]
    print_table(estimating.table(estimates))
    if device_memory is not None:
        check_device_memory(estimates, device_memory)
    print_line("")
    print_table(estimating.stream_table(estimates))
    for row in estimates:
        if row.advice:
            print_line(row.advice)


def probe(
    *,
    ranks: int | None = None,
    backend: str = "auto",
    threads: int | None = None,
    seconds: float = 10.0,
    timeout: float = 120.0,
) -> None:
    """Measure machine and link, for sancus estimate and tune: on local ranks, or started by any launcher.

    Parameters
    ----------
    ranks
        Number of ranks; under a launcher it may only repeat the launcher's.
    backend
        Transport: auto, gloo or mpi.
    threads
        Threads a rank; default: cores divided by the ranks of this host.
    seconds
        How long to measure the link.
    timeout
        Seconds after which a rank that does not answer is an error.
    """
    from sancus.launch.backend import choose_backend
    from sancus.launch.spawn import RanksNeeded
    from sancus.launch.world import ALONE, check_ranks, detect

    if not 0 < seconds < timeout:
        raise UserError(f"--seconds {seconds:g}: must be above 0, and below --timeout {timeout:g}")
    world = detect(os.environ)
    count = check_ranks(ranks, world)
    chosen = choose_backend(backend, world, "cpu")
    if world is None and count > 1:
        raise RanksNeeded(count, chosen)
    import torch

    from sancus.advise.machine import flags_of, machine_rows, measure
    from sancus.runs.build import connect

    here = world or ALONE
    torch.set_num_threads(here.threads(threads))
    group = connect(chosen, here, timeout)
    machine = measure(group, seconds)
    if group.rank == 0:
        print_table(machine_rows(machine))
        print_line(f"for sancus estimate: {' '.join(flags_of(machine))}")
    group.close()


def info(data: str, /) -> None:
    """Print what a graph is like, and what looks wrong with it.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, a file, a folder, or a name.
    """
    from sancus.datasets.info import facts_of, info_rows, oddities
    from sancus.datasets.open import find_reader

    name, reader = find_reader(data)
    graph = reader.load()
    facts = facts_of(graph)
    print_table([list(row) for row in info_rows(graph, facts, name)])
    for oddity in oddities(graph, facts):
        print_line(f"looks wrong: {oddity}")
