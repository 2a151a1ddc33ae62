"""What a process of its own does with the Triton kernels: interpret them against C, or compile them.

Triton decides when it is imported whether kernels will be interpreted, so each of these is a new process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.kernels import gpu
from sancus.kernels.base import Csr
from sancus.kernels.native import calls
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.processes import TOP
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
REAL = {"fp32": torch.float32, "fp64": torch.float64}
INDEX = {"i32": torch.int32, "i64": torch.int64}
SHARE = 0.4


def interpret(folder: str) -> dict[str, Any]:
    """Every kernel, interpreted, against the C library: what went wrong, by case; and whole trainings."""
    torch.manual_seed(1)
    return {"wrong": {name: _outcome(case) for name, case in _cases()}, "trained": train(Path(folder))}


def train(folder: Path) -> list[list[list[Any]]]:
    """Records of ranks that train by the C library, and by interpreted kernels that take all tensors."""
    found = []
    for model, factors in (("gcn", {"codec": "int2", "plan": "prepost"}), ("gat", {"codec": "int8"})):
        config = Config(
            model=model,
            factors=FactorSettings(**factors),
            shape=ModelSettings(hidden=4, heads=2, dropout=0.4, attention_dropout=0.4),
            training=TrainingSettings(epochs=1, lr=0.1, dtype="float64"),
        )

        def rank(group: Group, config: Config = config) -> list[Any]:
            return list(thread_trainer(config, open_own(folder, group), group).epochs())

        native = results(run_threads(2, rank))
        with mock.patch.object(gpu, "compiles", return_value=True), _one_kernel_at_a_time():
            found.append([native[0], results(run_threads(2, rank))[0]])
    return found


@contextlib.contextmanager
def _one_kernel_at_a_time() -> Iterator[None]:
    """Triton's interpreter changes its own language while a kernel runs, and ranks are threads here."""
    from triton.runtime.interpreter import GridExecutor

    lock, call = threading.Lock(), GridExecutor.__call__

    def locked(*arguments: Any, **options: Any) -> Any:
        with lock:
            return call(*arguments, **options)

    with mock.patch.object(GridExecutor, "__call__", locked):
        yield


def compile_ahead(folder: str) -> dict[str, dict[str, int | str]]:
    """Every specialisation for every target: bytes of machine code, or what went wrong; and rounding."""
    os.environ["TRITON_CACHE_DIR"] = folder
    return {
        f"{one.name}-{target}": _compiled(one, target)
        for target, one in itertools.product(TARGETS, specialisations())
    }


def run(what: str, folder: Path) -> Any:
    """The result of `interpret` or `compile_ahead`, in a process of its own."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1" if what == "interpret" else "0"}
    command = [sys.executable, "-m", "tests.helpers.triton_cases", what, str(folder)]
    done = subprocess.run(command, cwd=TOP, env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _outcome(case: Callable[[], None]) -> str:
    try:
        case()
    except Exception:
        return traceback.format_exc(limit=-3)
    return ""


def awkward(real: torch.dtype, index: torch.dtype, rows: int = 7, columns: int = 6) -> Csr:
    """A matrix with empty rows, repeated entries and a hub."""
    counts = torch.randint(0, 4, (rows,))
    counts[0], counts[2], counts[-1] = 0, 19, 0
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    entries = int(crow[-1])
    col = torch.randint(0, columns, (entries,)).to(index)
    return Csr(crow, col, torch.randn(entries, dtype=real), (rows, columns))


def _keys(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = -(1 << 31), (1 << 31) - 1
    return tuple(torch.randint(low, high, (n,), dtype=torch.int32) for n in (rows, columns))  # type: ignore


def _cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Shapes, dtypes, empty rows; sums may differ in rounding, all else may not."""
    for real, index in itertools.product(REAL, INDEX):
        yield f"spmm-{real}-{index}", lambda real=real, index=index: _spmm(REAL[real], INDEX[index])
        yield f"edges-{real}-{index}", lambda real=real, index=index: _edges(REAL[real], INDEX[index])
        yield f"keep-{real}-{index}", lambda real=real, index=index: _keep(REAL[real], INDEX[index])
    for real in REAL:
        yield f"rows-{real}", lambda real=real: _rows(REAL[real])
        yield f"drop-{real}", lambda real=real: _drop(REAL[real])
    for bits, coarse in itertools.product((1, 2, 4, 8), (False, True)):
        yield f"bits-{bits}-{'coarse' if coarse else 'full'}", lambda b=bits, c=coarse: _bits(b, coarse=c)


def _spmm(real: torch.dtype, index: torch.dtype) -> None:
    from sancus.kernels.triton import spmm

    for columns, limit, add in ((1, 4096, False), (130, 4096, True), (6, 3, True), (6, 3, False)):
        matrix, heads = awkward(real, index), 2 if columns == 6 else 1
        value = torch.randn(len(matrix.col), heads, dtype=real) if heads > 1 else matrix.value
        dense = torch.randn(columns, 6, dtype=real).T if columns == 6 else torch.randn(6, columns, dtype=real)
        out = torch.randn(7, columns, dtype=real)
        expected = out.clone()
        prepared = spmm.prepare(matrix, limit)
        assert (prepared.hubs is not None) == (limit == 3)
        spmm.spmm(prepared, value, dense, out, accumulate=add)
        calls.spmm((matrix.crow, matrix.col), value, dense, expected, accumulate=add)
        torch.testing.assert_close(out, expected)


def _edges(real: torch.dtype, index: torch.dtype) -> None:
    from sancus.kernels.triton import triton_edges as edges

    for heads, width in ((1, 5), (2, 3)):
        matrix = awkward(real, index)
        pattern = matrix.crow, matrix.col
        left, right = (torch.randn(n, heads * width, dtype=real) for n in matrix.shape)
        score = edges.sddmm(pattern, left, right, heads)
        torch.testing.assert_close(score, calls.sddmm(pattern, left, right, heads))
        share, gradient = edges.edge_softmax(matrix.crow, score), torch.randn_like(score)
        torch.testing.assert_close(share, calls.edge_softmax(matrix.crow, score))
        back = edges.edge_softmax_backward(matrix.crow, share, gradient)
        torch.testing.assert_close(back, calls.edge_softmax_backward(matrix.crow, share, gradient))


def _keep(real: torch.dtype, index: torch.dtype) -> None:
    from sancus.kernels.triton import triton_masks as masks

    matrix = awkward(real, index)
    pattern, keys, bucket = (matrix.crow, matrix.col), _keys(*matrix.shape), int(SHARE * (1 << 31))
    keep = masks.keep_entries(pattern, keys, bucket)
    _, col, value = calls.keep_entries(pattern, matrix.value, keys, bucket, 1.0)
    assert 0 < len(col) < len(matrix.col)
    assert matrix.col[keep].equal(col) and matrix.value[keep].equal(value)


def _rows(real: torch.dtype) -> None:
    from sancus.kernels.triton import triton_rows as rows

    index = torch.tensor([3, 0, 5])
    for operation, columns in itertools.product(range(3), (1, 5, 300)):
        dense = torch.randn(3 if operation == rows.ADD_PLACED else 6, columns, dtype=real)
        out = torch.randn(6 if operation == rows.ADD_PLACED else 3, columns, dtype=real)
        expected = out.clone()
        rows.move_rows(operation, index, dense, out)
        calls.move_rows(operation, index, dense, expected)
        assert out.equal(expected)


def _drop(real: torch.dtype) -> None:
    from sancus.kernels.triton import triton_masks as masks

    for rows, columns in ((1, 1), (4, 5), (2, 300), (0, 3)):
        x, keys = torch.randn(rows, columns, dtype=real), _keys(rows, columns)
        for share in (SHARE, 0.0):
            arguments = x, keys, int(share * (1 << 31)), 1.0 / (1.0 - share)
            assert masks.drop(*arguments).equal(calls.drop(*arguments))


def _bits(bits: int, *, coarse: bool) -> None:
    """Also of a constant row, one with NaN, one of a tiny and one of an endless range."""
    from sancus.kernels.triton import triton_bits as kernels

    for columns in (1, 9, 70, 260):
        x = torch.randn(6, columns)
        x[1], x[2, columns // 2], x[3] = 3.0, torch.nan, x[3] * 1e-42
        x[4, 0], x[4, -1] = -3e38, 3e38
        ids, seed = torch.randint(-(1 << 62), 1 << 62, (6,)), (1 << 63) + 5
        made = kernels.pack(x, bits, seed, ids, coarse=coarse)
        expected = calls.pack(x, bits, seed, ids, coarse=coarse)
        for mine, theirs in zip(made, expected, strict=True):
            assert _words(mine).equal(_words(theirs)), (columns, mine, theirs)
        out, there = torch.empty(6, columns), torch.empty(6, columns)
        kernels.unpack(*made[:3], bits, out)
        calls.unpack(*expected[:3], bits, there)
        assert _words(out).equal(_words(there))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Bits, where one NaN is as good as another."""
    return tensor.nan_to_num(nan=7.0).view(torch.int32) if tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class Specialisation:
    """One way in which a kernel is compiled."""

    kernel: str  # module.function
    types: str  # of its arguments, "name:type …"
    constants: dict[str, Any]

    @property
    def name(self) -> str:
        """Names the test."""
        chosen = ",".join(f"{key}={value}" for key, value in self.constants.items())
        kinds = sorted({part.partition(":*")[2] for part in self.types.split() if ":*" in part})
        return f"{self.kernel}[{chosen}][{' '.join(kinds)}]"


def specialisations() -> Iterator[Specialisation]:
    """Every one that the package uses, with columns in the widest blocks."""
    for real, index in itertools.product(REAL, INDEX):
        yield from _of_pattern(real, index)
    for real in REAL:
        rows = f"dense:*{real} out:*{real} dense_stride:i32 out_stride:i32 columns:i32"
        sums = f"first:*i64 last:*i64 row:*i64 col:*i64 value:*{real} {rows} width:i32"
        for add in (False, True):
            constants = {"HEADS": 1, "WEIGHTED": False, "ALL": False, "ADD": add, "LIMIT": 1 << 62}
            yield Specialisation("spmm.spmm_kernel", sums, constants | {"SIZE": 128})
        for operation in range(3):
            yield Specialisation(
                "triton_rows.move_rows_kernel", f"index:*i64 {rows}", {"OPERATION": operation, "SIZE": 256}
            )
        keys = f"row_key:*i32 column_key:*i32 out:*{real} x_stride:i32 out_stride:i32 columns:i32 bucket:i32"
        yield Specialisation("triton_masks.drop_kernel", f"x:*{real} {keys} scale:*{real}", {"SIZE": 256})
        edges = f"crow:*i64 score:*{real} share:*{real}"
        yield Specialisation("triton_edges.softmax_kernel", edges, {"HEADS": 2, "SIZE": 64})
        back = f"crow:*i64 share:*{real} gradient:*{real} out:*{real}"
        yield Specialisation("triton_edges.softmax_back_kernel", back, {"HEADS": 2, "SIZE": 64})
    for bits in (1, 2, 4, 8):
        ends = "data:*u8 zero:*fp32 scale:*fp32"
        for coarse in (False, True):
            types = f"x:*fp32 row_id:*i64 {ends} finite:*i1 seed:*i64 x_stride:i32 columns:i32 width:i32"
            constants = {"BITS": bits, "COARSE": coarse, "SIZE": 256}
            yield Specialisation("triton_bits.pack_kernel", types, constants)
        types = f"{ends} out:*fp32 out_stride:i32 columns:i32 width:i32"
        yield Specialisation("triton_bits.unpack_kernel", types, {"BITS": bits, "SIZE": 256})


def _of_pattern(real: str, index: str) -> Iterator[Specialisation]:
    """Of kernels that read the columns of a matrix."""
    rows = f"dense:*{real} out:*{real} dense_stride:i32 out_stride:i32 columns:i32 width:i32"
    types = f"first:*i64 last:*i64 row:*i64 col:*{index} value:*{real} {rows}"
    for heads, (whole, add) in itertools.product((1, 2), ((True, False), (True, True), (False, False))):
        constants = {"HEADS": heads, "WEIGHTED": True, "ALL": whole, "ADD": add, "LIMIT": 4096, "SIZE": 128}
        yield Specialisation("spmm.spmm_kernel", types, constants)
    sides = f"left:*{real} right:*{real} score:*{real} left_stride:i32 right_stride:i32 width:i32"
    yield Specialisation(
        "triton_edges.sddmm_kernel", f"crow:*i64 col:*{index} {sides}", {"HEADS": 2, "SIZE": 128}
    )
    if real == "fp32":
        keys = f"crow:*i64 col:*{index} row_key:*i32 column_key:*i32 keep:*i1 bucket:i32"
        yield Specialisation("triton_masks.keep_kernel", keys, {"SIZE": 256})


def _compiled(one: Specialisation, target: str) -> dict[str, int | str]:
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, function = one.kernel.partition(".")
    kernel = getattr(importlib.import_module(f"sancus.kernels.triton.{module}"), function)
    names, types = kernel.arg_names, dict(part.split(":") for part in one.types.split())
    assert set(names) == set(types) | set(one.constants), one.name
    source = ASTSource(
        kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in one.constants.items()},
    )
    exact = module == "triton_bits"
    try:
        made = triton.compile(
            source, target=GPUTarget(*TARGETS[target]), options={"enable_fp_fusion": not exact}
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    code = made.asm.get("cubin") or made.asm.get("hsaco") or b""
    text = made.asm.get("ptx", "")
    return {"bytes": len(code), "loose": sum(text.count(word) for word in ("fma.", "div.full", "div.approx"))}


if __name__ == "__main__":
    print(json.dumps({"interpret": interpret, "compile_ahead": compile_ahead}[sys.argv[1]](sys.argv[2])))
