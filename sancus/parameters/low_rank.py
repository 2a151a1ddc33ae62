"""Parameter codec `low-rank`: PowerSGD (Vogels et al., NeurIPS 2019), Algorithm 1, with sums by codes.

A gradient `M [n, m]`, the sum of the ranks' `M_i`, crosses as two thin factors, `M ≈ P Qᵀ`:

    P = Σ M_i Q      with the Q of the call before, made orthonormal (the warm start; line 3)
    Q = Σ M_iᵀ P̃     with `P̃ = P (PᵀP)⁻¹`, so that `P Qᵀ` is M projected on the span of P (lines 5-6)

and what this leaves out of `M_i` is added to the next `M_i` (error feedback, Algorithm 2). The paper
makes P orthonormal instead. The span is the same, but here every rank works out `P̃` for itself: it only
enters sums that are agreed by codes, so that no bit of the result hangs on how a machine orders the sums of
an inverse. `P Qᵀ` is made value by value, in the order of columns, for the same reason.

Vectors, and matrices that two factors would not make smaller, are summed in full precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from sancus.comm.group import Group
from sancus.parameters.base import Shapes
from sancus.parameters.codes import Code, FewBits, Whole
from sancus.parameters.differences import Course, Of
from sancus.parameters.sum_by_codes import COLLECTIVES, Part, sum_by_codes, sum_bytes

RESIDUAL, BASIS = "residual", "basis"
BITS = (4, 8, 32)
ROW = 128  # values, of a coded factor: columns of a factor differ in size, so rows are to be of one column
SMALLEST = 1e-6  # of the largest singular value: below is noise of float32


@dataclass
class Matrix:
    """What is remembered of a matrix `[n, m]` from one call to the next."""

    residual: torch.Tensor  # [n, m]
    basis: torch.Tensor  # [m, r], the last Q


class LowRank:
    """PowerSGD: matrices as two factors of `rank` columns, of 32, 8 or 4 bits a value; error feedback."""

    lossless = False

    def __init__(self, rank: int = 4, bits: int = 32, of: Of = "gradients") -> None:
        if rank < 1:
            raise ValueError(f"rank={rank} must be at least 1")
        if bits not in BITS:
            raise ValueError(f"bits={bits} must be one of {', '.join(map(str, BITS))}")
        self._rank = rank
        self._code: Code = Whole() if bits == 32 else FewBits(bits, ROW)
        self._course = Course(of)
        self._memory: dict[int, Matrix] = {}  # by the tensor's place

    def sum(self, tensors: Sequence[torch.Tensor], group: Group, seed: int) -> list[torch.Tensor]:
        """Factors of matrices, and all else in full beside the first factors."""
        if group.size == 1:
            return list(tensors)
        tensors = self._course.before(tensors)
        wholes = {
            place: self._with_residual(place, tensor, seed)
            for place, tensor in enumerate(tensors)
            if self._pays(tensor.shape)
        }
        rest = [tensor for place, tensor in enumerate(tensors) if place not in wholes]
        lefts = [whole @ _orthonormal(self._memory[place].basis) for place, whole in wholes.items()]
        first = [*(self._part(p) for p in lefts), *_in_full(rest)]
        totals = sum_by_codes(first, group, seed)
        agreed = [self._factor(total.sum) for total in totals[: len(lefts)]]
        rights = [_projected(whole, p) for whole, p in zip(wholes.values(), agreed, strict=True)]
        second = sum_by_codes([self._part(q) for q in rights], group, ~seed) if rights else []
        sums = {}
        for (place, whole), p, q, total in zip(wholes.items(), agreed, rights, second, strict=True):
            basis, lost = self._factor(total.sum), self._factor(total.left_out)
            self._memory[place] = Matrix(whole - _product(p, q - lost), basis)
            sums[place] = _product(p, basis)
        others = iter(totals[-1].sum.split([tensor.numel() for tensor in rest]) if rest else ())
        return self._course.after(
            [
                (sums[place] if place in sums else next(others)).view_as(tensor)
                for place, tensor in enumerate(tensors)
            ]
        )

    def wire_bytes(self, shapes: Shapes, ranks: int, itemsize: int) -> int:
        """`r (n + m)` values of a matrix in place of `n m`."""
        sizes = [
            (self._rank * side, self._code) for shape in shapes if self._pays(shape) for side in _sides(shape)
        ]
        rest = sum(math.prod(shape) for shape in shapes if not self._pays(shape))
        return sum_bytes([*sizes, (rest, Whole())], ranks, itemsize)

    def collectives(self, shapes: Shapes) -> int:
        """Left factors and all else; then, where there are any, right factors."""
        return COLLECTIVES * (1 + any(self._pays(shape) for shape in shapes))

    def state(self) -> dict[str, torch.Tensor]:
        """Of every matrix, by its place: what was left out, and the last right factor."""
        return self._course.state() | {
            f"{name}/{place}": tensor
            for place, memory in self._memory.items()
            for name, tensor in ((RESIDUAL, memory.residual), (BASIS, memory.basis))
        }

    def restore(self, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        """Of matrices that are not in a state nothing is remembered."""
        self._course.restore(state, device)
        places = {int(name.partition("/")[2]) for name in state if name.startswith(f"{BASIS}/")}
        self._memory = {
            place: Matrix(*(state[f"{name}/{place}"].to(device) for name in (RESIDUAL, BASIS)))
            for place in sorted(places)
        }

    def _pays(self, shape: Sequence[int]) -> bool:
        """Whether two factors are smaller than the whole."""
        return len(shape) > 1 and self._rank * sum(_sides(shape)) < math.prod(shape)

    def _with_residual(self, place: int, tensor: torch.Tensor, seed: int) -> torch.Tensor:
        """`M_i [n, m]`: the tensor, and what the calls before left out of it."""
        whole = tensor.reshape(_sides(tensor.shape))
        if place not in self._memory:
            drawn = torch.Generator().manual_seed(seed % 2**63 + place)
            basis = torch.randn(whole.shape[1], self._rank, generator=drawn, dtype=torch.float64)
            self._memory[place] = Matrix(torch.zeros_like(whole), basis.to(whole))
        return whole + self._memory[place].residual

    def _part(self, factor: torch.Tensor) -> Part:
        """A factor `[·, r]` as one vector, column after column."""
        return Part(factor.T.reshape(-1), self._code)

    def _factor(self, values: torch.Tensor) -> torch.Tensor:
        """The factor `[·, r]` of such a vector."""
        return values.view(self._rank, -1).T


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    """A tensor as a matrix: its first side, and all others as one."""
    return shape[0], math.prod(shape[1:])


def _in_full(rest: Sequence[torch.Tensor]) -> list[Part]:
    """One part of all tensors that are no factors, if there are any."""
    return [Part(torch.cat([tensor.reshape(-1) for tensor in rest]), Whole())] if rest else []


def _orthonormal(basis: torch.Tensor) -> torch.Tensor:
    """Columns of the same span at right angles."""
    return torch.linalg.qr(basis.double())[0].to(basis)


def _projected(whole: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """`M_iᵀ P (PᵀP)⁻¹ [m, r]`, or the least-squares solution of it; NaN where anything is not finite."""
    if not bool(torch.isfinite(p).all()):
        return whole.new_full((whole.shape[1], p.shape[1]), math.nan)
    inverse = torch.linalg.pinv(p.double(), rtol=SMALLEST)  # [r, n]
    return (inverse @ whole.double()).T.to(whole)


def _product(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """`P Qᵀ [n, m]`, column after column."""
    product = p[:, :1] * q[:, 0]
    for column in range(1, p.shape[1]):
        product += p[:, column : column + 1] * q[:, column]
    return product
