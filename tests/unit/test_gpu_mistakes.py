"""GPUs that are not there, too few, too small or too old: one line each; and what is measured of one."""

from __future__ import annotations

import pytest
import torch

from sancus.advise.device_check import kernels
from sancus.advise.estimate import Estimate, parse_rate
from sancus.advise.links import check_device_memory
from sancus.errors import UserError
from sancus.kernels import bits
from sancus.runs.check import check_cuda
from sancus.runs.directory import peak_memory


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What this machine would have: GPUs by their capability, for a torch of sm_80 and PTX of 9.0."""
    found: list[tuple[int, int]] = [(8, 6), (9, 0)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(found))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: found[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU of {found[index]}")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "compute_90"])
    return found


def test_gpus_that_will_do(gpus: list[tuple[int, int]]) -> None:
    check_cuda(2)
    gpus.append((12, 0))  # by PTX, compiled when it is loaded
    check_cuda(3)


def test_no_gpu_or_too_few(gpus: list[tuple[int, int]]) -> None:
    with pytest.raises(UserError, match=r"^--device cuda: 3 ranks of this host, but 2 GPUs, .*fewer ranks"):
        check_cuda(3)
    gpus.clear()
    with pytest.raises(UserError, match="torch finds no GPU here; use --device cpu"):
        check_cuda()


def test_a_gpu_that_is_too_old(gpus: list[tuple[int, int]]) -> None:
    gpus[1] = (7, 5)
    check_cuda(1)
    with pytest.raises(UserError, match=r"GPU 1 \(GPU of \(7, 5\), sm_75\) cannot run .* for sm_80, compute"):
        check_cuda(2)


def test_a_graph_that_is_too_large_for_a_gpu() -> None:
    needs = Estimate(2, {}, {"runtime": 9e9, "graph": 3e9, "history": 4e9}, 0.0, 0.0)
    check_device_memory([needs], "8GB")
    with pytest.raises(UserError, match=r"^--device-memory 6GB: each of 2 ranks needs 7.* GB on its GPU;"):
        check_device_memory([needs], "6GB")
    with pytest.raises(UserError, match=r"--device-memory '6': write a number and MB, GB or TB"):
        check_device_memory([needs], "6")
    assert parse_rate("nvlink4") > parse_rate("infiniband-ndr") > parse_rate("10Gbit")


def test_peak_memory_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 10 + device.index)
    assert peak_memory(torch.device("cuda", 3)) == 13
    assert peak_memory(torch.device("cpu")) > 1e6


def test_kernels_of_a_device_are_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert kernels(cpu).state == "ok"
    unpack, calls = bits.unpack, []

    def off_by_a_bit(*arguments: object) -> torch.Tensor:
        calls.append(1)
        out = unpack(*arguments)  # type: ignore[arg-type]
        return out if len(calls) <= len(bits.WIDTHS) else out.nextafter(out + 1)

    monkeypatch.setattr(bits, "unpack", off_by_a_bit)
    found = kernels(cpu)
    assert (found.state, found.summary) == ("broken", "bits differ from the CPU's")
