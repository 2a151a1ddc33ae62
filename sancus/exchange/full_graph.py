"""The whole graph, spread over ranks: what a model is called with.

`FullGraph` offers the calls of `sancus.models.neighbourhood`; it chooses the order of products, reuses what
never changes, and leaves the moving to the mover, the dropout to the noise. A model never sees ranks,
histories or bytes. `exchange` is what models and loops call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sancus.errors import UserError
from sancus.exchange.aggregate import AggregateThenTransform, Rows, aggregate, clip
from sancus.exchange.attention import attend_blocks, attend_rows
from sancus.exchange.clean_pass import REFUSAL, make_clean_pass, note_chance
from sancus.exchange.constant_input import ConstantInput
from sancus.exchange.crossing import Crossing
from sancus.exchange.labels import LabelInput, Labelled
from sancus.exchange.mover import Mover
from sancus.exchange.noise import Noise
from sancus.exchange.product_order import ProductOrder, is_one_way, product_order
from sancus.exchange.savings import Savings
from sancus.exchange.statistics import SumOverRanks
from sancus.exchange.streaming import BlockStream
from sancus.exchange.timing import time_way_back
from sancus.kernels.edges import Scorer
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.summed import R, Rowlike, Summed
from sancus.plans.base import Plan


class FullGraph:
    """All nodes of the graph; the own rows of this rank and what it needs of the others."""

    def __init__(
        self,
        mover: Mover,
        noise: Noise,
        constant: ConstantInput,
        labels: LabelInput | None = None,
        savings: Savings | None = None,
    ) -> None:
        """`constant` are the features, `labels` the training labels of models that take labels as input."""
        self.mover = mover
        self.plan = mover.plan
        self.group = mover.group
        self.crossing = mover.crossing
        self.noise = noise
        self.nodes = noise.nodes
        self.input = constant.x
        self.labels = labels
        self.savings = savings or Savings()
        self.constant = constant
        self.orders: dict[int, ProductOrder] = {}  # of training, by layer; evaluation follows

    def begin_epoch(self, epoch: int, model: nn.Module | None = None) -> None:
        """A training epoch starts; its number is the same on all ranks.

        `model` is the one that will be trained. Only a policy that measures drift needs it, and only where
        the model drops out: it then runs once without dropout, see `sancus.exchange.clean_pass`.
        """
        self.group.begin_epoch(epoch)
        self.crossing.begin_epoch()
        with self.group.stopwatch.at("dense"):
            make_clean_pass(self.crossing, model, self.input, self)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside, everything is fresh and in full precision, and the histories are left alone.

        This is how evaluation runs; its bytes are counted apart.
        """
        with self.group.clock.during("evaluation"):
            yield

    def propagate(
        self, h: Rowlike, layer: int, weight: torch.Tensor | None = None, dropout: float = 0.0
    ) -> torch.Tensor:
        """`Â h`, or `Â h W` with the order chosen and a constant input reused.

        `h [n_i, f_in]`, `weight [f_in, f_out]`. Dropout falls on `h` at the owner, before anything is sent;
        on a reused dense input it falls on `Â h` instead.
        """
        if self.savings.reuse_input and (h.x if isinstance(h, Labelled) else h) is self.input:
            result = self.constant.propagate(layer, weight, dropout)
            return result + h.propagate_labels(layer, weight) if isinstance(h, Labelled) else result
        clean = h if dropout and self.crossing.wants_clean(layer) else None
        if weight is not None and self._order(h, weight, layer) == "transform-first":
            narrow = self.transform(h, layer, weight, dropout)
            return aggregate(self.mover, layer, narrow, None if clean is None else clean @ weight)
        h = _dense(self.dropout(h, layer, dropout), self.savings)
        clean = None if clean is None else _dense(clean, self.savings)
        if weight is None:
            return aggregate(self.mover, layer, h, clean)
        if h.requires_grad and self.savings.order == "aggregate-first" and not _one_way(self.crossing):
            result = AggregateThenTransform.apply(self.mover, layer, h, weight, clean)
            return result
        return aggregate(self.mover, layer, h, clean) @ weight

    def rows(
        self, h: Rowlike, layer: int, dropout: float = 0.0, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Own rows, then the rows that other owners sent: `[n_i + r_i, f]`, the columns of `local_rows`.

        With a `weight [f_in, f_out]`, rows of `h W`. Where a plan picks rows, those of the input cross once.
        Rows that are constants cross as they are, and meet the `W` of now at the receiver (DIGEST eq. 5).
        """
        rows, crossed = self._gathered(h, layer, dropout, weight)
        return clip(self.mover, rows) if crossed else rows

    def attend(
        self,
        h: Rowlike,
        layer: int,
        weight: torch.Tensor,
        query: Callable[[torch.Tensor], torch.Tensor],
        scorer: Scorer,
        *,
        dropout: float = 0.0,
        edge_dropout: float = 0.0,
    ) -> torch.Tensor:
        """`Σ_j α_ij V_j` with values `V = h W`, own and received: `rows`, and a softmax over a row's edges.

        `h [n_i, f_in]`, `weight [f_in, heads·d]` to `[n_i, heads·d]`. `query` makes `[n_i, k]` of the own
        values, `scorer` keys of all values and the score of an edge. `edge_dropout` falls on `α`. Where
        blocks come owner after owner, they are used as they come (see `sancus.exchange.attention`), unless
        they are constants: those are kept, as the gradient of `W` needs them.
        """
        _check_rows(self.plan)
        masks = self.noise.edge_masks(layer, edge_dropout, scorer.heads)
        if not self.plan.forward.broadcast or _one_way(self.crossing):
            values, crossed = self._gathered(h, layer, dropout, weight)
            with self.group.stopwatch.at("aggregation"):
                own = query(values[: len(self.nodes)])
                result = attend_rows(self.local_rows, own, values, scorer, masks)
        else:
            values, clean = self._values(h, layer, dropout, weight)
            crossed, blocks = True, BlockStream(self.mover, layer, clean)
            with self.group.stopwatch.at("aggregation"):
                result = attend_blocks(blocks, blocks.own, query(values), values, scorer, masks)
        time_way_back(self.group.stopwatch, values, result)
        return clip(self.mover, result) if crossed else result

    def transform(self, h: Rowlike, layer: int, weight: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """`dropout(h) W [n_i, f_out]` of own rows, with the mask of this layer; no dropped copy is kept."""
        return self.noise.drop_transform(h, layer, weight, dropout)

    def dropout(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """Dropout of own rows with the mask that `propagate` and `rows` use at this layer."""
        return self.noise.drop(h, layer, share)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of `values [k]`, for statistics of all rows; every rank must call it."""
        if self.group.clock.silent:
            raise UserError(f"the model sums over ranks {REFUSAL}")
        if self.crossing.courier is not None and not self.group.clock.exact:
            raise UserError("the model sums over ranks, which wait for nobody: choose another --schedule")
        result: torch.Tensor = SumOverRanks.apply(self.group, values)
        return result

    def targets(self, h: R) -> R:
        """The rows whose results are wanted: all of them."""
        return h

    @property
    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over the rows that `rows` returns, `[n_i, n_i + r_i]`."""
        return self.mover.local_rows

    def labelled(self, embedding: torch.Tensor, rate: float) -> Labelled:
        """The input with the embedded labels `embedding [C, F]` of a share of the training nodes."""
        assert self.labels is not None, "made for a model that takes labels"
        draw = self.labels.draw(rate, self.crossing.clock.epoch)
        if not self.labels.constant(rate):
            note_chance(self.crossing)
        return self.labels.added_to(self.input, embedding, draw)

    def _gathered(
        self, h: Rowlike, layer: int, dropout: float, weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, bool]:
        """What `rows` returns, before its gradient is clipped; and whether the rows of others cross now."""
        _check_rows(self.plan)
        if h is self.input and self.savings.reuse_input and not self.plan.forward.broadcast:
            return self.mover.current.present(self.constant.rows(layer, weight, dropout)), False
        if weight is not None and _one_way(self.crossing):
            rows, crossed = self._gathered(h, layer, dropout, None)
            return rows @ weight, crossed
        values, clean = self._values(h, layer, dropout, weight)
        return Rows.apply(self.mover, layer, values, clean), True

    def _order(self, h: Rowlike, weight: torch.Tensor, layer: int) -> ProductOrder:
        """Which product comes first; other passes take the order of training, so that all round alike."""
        training = self.group.clock.current_pass == "training"
        if not training and layer in self.orders:
            return self.orders[layer]
        differentiable = isinstance(h, Summed) or (isinstance(h, torch.Tensor) and h.requires_grad)
        order = product_order(
            self.savings.order,
            *weight.shape,
            training=torch.is_grad_enabled(),
            input_gradient=differentiable or not self.savings.skip_input_gradient,
            one_way=_one_way(self.crossing),
        )
        if training:
            self.orders[layer] = order
        return order

    def _values(
        self, h: Rowlike, layer: int, dropout: float, weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`dropout(h) W`, and the same without dropout where drift is measured."""
        clean = h if dropout and self.crossing.wants_clean(layer) else None
        if weight is None:
            dropped = self.dropout(h, layer, dropout)
            plain = None if clean is None else _dense(clean, self.savings).detach()
            return _dense(dropped, self.savings), plain
        values = self.transform(h, layer, weight, dropout)
        return values, None if clean is None else (clean @ weight).detach()


def _one_way(crossing: Crossing) -> bool:
    """Whether the rows of others are constants in the present pass: no gradient of them returns."""
    return is_one_way(crossing.policies) and not crossing.clock.exact


def _check_rows(plan: Plan) -> None:
    """Who weighs edges by content needs the rows themselves."""
    if not plan.picks_rows:
        raise UserError(
            "this model weighs edges by content, but the plan sends sums; choose --plan halo or --plan block"
        )


def _dense(h: Rowlike, savings: Savings) -> torch.Tensor:
    """The rows as one tensor, with a gradient where even that of the input is to be computed."""
    dense = h if isinstance(h, torch.Tensor) else h.to_dense()
    if torch.is_grad_enabled() and not savings.skip_input_gradient and not dense.requires_grad:
        dense = dense.detach().requires_grad_()
    return dense
