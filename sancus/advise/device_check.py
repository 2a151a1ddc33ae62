"""`sancus doctor --device cuda`: everything that has never run on a GPU, in five minutes, as one page.

Kernels are compared with those of the CPU, ranks on the device with one process on the CPU; then come speeds
of copies, and an epoch of every preset. With `cpu` in the place of `cuda` the same is done without a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch

from sancus.advise.doctor import Finding
from sancus.advise.trial_run import trial
from sancus.config.presets import PRESETS
from sancus.kernels import KERNELS, bits, edges, masks, rows
from sancus.kernels.matrix import SparseMatrix
from sancus.plugins import build
from sancus.report.units import bytes_text, seconds_text
from sancus.runs.check import check_cuda

SMALL = "synthetic:nodes=400,features=12,classes=4,degree=6"
LARGER = "synthetic:nodes=20000,features=64,classes=8,degree=12"
MODELS = ("gcn", "gat")
SECONDS = 120.0  # for one run
COPIED = 1 << 26  # bytes
REPEATS = 5
REPORT = "please send us this page"
SHARE = 0.4  # that a mask drops


def examine_device(kind: str) -> Iterator[Finding]:
    """Try the device, one thing after the other; `kind` is cpu or cuda."""
    if kind == "cuda":
        check_cuda()
    count = torch.cuda.device_count() if kind == "cuda" else 2
    yield _devices(kind)
    for index in range(count if kind == "cuda" else 1):
        device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
        yield kernels(device)
        yield _copies(device)
    for model in MODELS:
        for ranks in sorted({1, count}):
            yield _law(kind, model, ranks)
    for preset in PRESETS:
        yield _epoch(kind, preset, count)


def _devices(kind: str) -> Finding:
    """What there is; the page is read somewhere else."""
    if kind == "cpu":
        return Finding("device", "ok", f"the processor, {torch.get_num_threads()} threads")
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    names = [f"{one.name} (sm_{one.major}{one.minor}, {bytes_text(one.total_memory)})" for one in found]
    return Finding(
        "device", "ok", f"{', '.join(names)}; CUDA {torch.version.cuda}, torch {torch.__version__}"
    )


def kernels(device: torch.device) -> Finding:
    """Every kernel on the device against the CPU's: bits, masks and picks must be equal, sums close."""
    torch.manual_seed(0)
    checks: dict[str, Callable[[torch.device], list[torch.Tensor]]] = {
        "bits": _bits,
        "masks": _masks,
        "picks": _picks,
        "sums": _sums,
    }
    wrong = []
    for name, make in checks.items():
        state = torch.get_rng_state()
        expected = make(torch.device("cpu"))
        torch.set_rng_state(state)
        made = [tensor.cpu() for tensor in make(device)]
        same = torch.allclose if name == "sums" else torch.equal
        wrong += [] if all(map(same, made, expected)) else [name]
    what = f"kernels {device}"
    if wrong:
        return Finding(what, "broken", f"{', '.join(wrong)} differ from the CPU's", REPORT)
    return Finding(what, "ok", "bits, masks and picks are the CPU's exactly, sums but for rounding")


def _bits(device: torch.device) -> list[torch.Tensor]:
    x, ids = torch.randn(500, 77), torch.arange(500)
    found: list[torch.Tensor] = []
    for width in bits.WIDTHS:
        packed = bits.pack(x.to(device), width, 7, ids.to(device))
        found += [packed.data, packed.zero, packed.scale]
        found.append(bits.unpack(packed.data, packed.zero, packed.scale, width, x.shape[1]))
    return found


def _masks(device: torch.device) -> list[torch.Tensor]:
    keys = [torch.randint(-(1 << 31), (1 << 31) - 1, (n,), dtype=torch.int32) for n in (500, 77)]
    by_row, by_column = (key.to(device) for key in keys)
    dropped = masks.drop(torch.randn(500, 77).to(device), (by_row, by_column), SHARE)
    entries = masks.drop_entries(_matrix(device, 77), (by_row, by_column), SHARE)
    return [dropped, entries.crow, entries.col, entries.value]


def _picks(device: torch.device) -> list[torch.Tensor]:
    h, index = torch.randn(500, 77).to(device), torch.randperm(500)[:200].to(device)
    picked, placed = rows.take(h, index), torch.zeros_like(h)
    rows.add_taken(h, index, picked)
    rows.add_at(picked, index, placed)
    return [picked, placed]


def _sums(device: torch.device) -> list[torch.Tensor]:
    matrix, h, left = _matrix(device, 300), torch.randn(300, 64).to(device), torch.randn(500, 64).to(device)
    score = edges.sddmm(matrix, left, h, 4)
    share = edges.edge_softmax(matrix, score)
    return [matrix.multiply(h), score, share, edges.spmm(matrix, share, h)]


def _matrix(device: torch.device, columns: int) -> SparseMatrix:
    """`[500, columns]` with empty rows, and one long row."""
    import scipy.sparse as sp

    dense = torch.where(torch.rand(500, columns) < 0.05, torch.randn(500, columns), 0.0)
    dense[::7], dense[3] = 0.0, 1.0
    kernel = build("kernel", KERNELS, "auto")
    return SparseMatrix.from_scipy(sp.csr_array(dense.numpy()), kernel, torch.float32, device)


def _copies(device: torch.device) -> Finding:
    """Bytes a second to the device, back, and inside it."""
    there = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    here = torch.zeros(COPIED, dtype=torch.uint8, pin_memory=device.type == "cuda")
    pairs = {"to it": (here, there), "from it": (there, here), "inside": (there, there.clone())}
    found = []
    for way, (source, target) in pairs.items():
        best = math.inf
        for _ in range(REPEATS):
            _finish(device)
            started = time.perf_counter()
            target.copy_(source)
            _finish(device)
            best = min(best, time.perf_counter() - started)
        found.append(f"{way} {bytes_text(COPIED / best)}/s")
    return Finding(f"copies {device}", "ok", ", ".join(found))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _law(kind: str, model: str, ranks: int) -> Finding:
    """Ranks on the device compute the losses of one process on the CPU, in float64."""
    flags = f"--model {model} --preset exact --dtype float64 --optimizer sgd --lr 0.1 --epochs 4 --hidden 8"
    alone = trial(SMALL, [*flags.split(), "--ranks", "1"], SECONDS)
    made = trial(SMALL, [*flags.split(), "--ranks", str(ranks), "--device", kind], SECONDS)
    what = f"law {model} x{ranks}"
    for run in (alone, made):
        if run.failure:
            return Finding(what, "broken", run.failure, REPORT)
    gap = max(abs(a - b) / abs(b) for a, b in zip(made.losses, alone.losses, strict=True))
    if not gap < 1e-9:
        return Finding(what, "broken", f"losses are {gap:.1e} off one process", REPORT)
    return Finding(what, "ok", f"losses are those of one process on the CPU, but for {gap:.0e}")


def _epoch(kind: str, preset: str, ranks: int) -> Finding:
    """The quickest epoch of a preset."""
    flags = f"--preset {preset} --epochs 4 --eval-every 4 --ranks {ranks} --device {kind}".split()
    run = trial(LARGER, flags, SECONDS)
    what = f"epoch {preset}"
    if run.failure:
        return Finding(what, "broken", run.failure, REPORT)
    return Finding(what, "ok", f"{seconds_text(min(run.seconds))} on {ranks} ranks")
