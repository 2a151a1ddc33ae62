"""What a model may call: the only thing that models know of graph, ranks and messages.

A model is a function of own rows `[n_i, f]` and of a neighbourhood, which gives it what the neighbours of
these rows contribute. The neighbourhood may be the whole graph, spread over many processes
(`sancus.exchange.full_graph`), or a part of it; a model never sees ranks, histories or bytes.

All calls are differentiable. Every `propagate`, `rows` and `attend` of one pass has a `layer` number of its
own: it names what is sent, and the mask of the dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from sancus.kernels.edges import Scorer
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import PickedRows
from sancus.kernels.summed import R, Rowlike, Summed


class Neighbourhood(Protocol):
    """The neighbours of `n_i` own rows."""

    @property
    def input(self) -> torch.Tensor | SparseMatrix | PickedRows:
        """The constant features of the own rows, `[n_i, F]`."""
        ...

    @property
    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over the rows that `rows` returns, `[n_i, n_i + r_i]`."""
        ...

    def propagate(
        self, h: Rowlike, layer: int, weight: torch.Tensor | None = None, dropout: float = 0.0
    ) -> torch.Tensor:
        """`Â dropout(h)`, or `Â dropout(h) W`: `h [n_i, f_in]`, `weight [f_in, f_out]` to `[n_i, f_out]`.

        For models that only sum their neighbours; which of the two products comes first is not theirs to say.
        """
        ...

    def rows(
        self, h: Rowlike, layer: int, dropout: float = 0.0, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Own rows of `dropout(h) W`, then those of the neighbours: `[n_i + r_i, f_out]`.

        For models that weigh edges by content; `local_rows` are the edges over them.
        """
        ...

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
        """`Σ_j α_ij V_j` with values `V = dropout(h) W` and `α_i` the softmax of scores over a row's edges.

        `h [n_i, f_in]`, `weight [f_in, heads·d]` to `[n_i, heads·d]`. `query` makes `[n_i, k]` of the own
        values, `scorer` keys of all values and the score of an edge. `edge_dropout` falls on `α`.
        """
        ...

    def transform(self, h: Rowlike, layer: int, weight: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """`dropout(h) W [n_i, f_out]` of own rows, with the mask of this layer; no dropped copy is kept."""
        ...

    def dropout(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """Dropout of own rows, with the mask that the other calls use at this layer."""
        ...

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values [k]` over all rows there are, wherever they are; everyone must call it."""
        ...

    def targets(self, h: R) -> R:
        """The rows of `h` that are still wanted: all of a whole graph; of a sample, the first ones.

        In a sample each `propagate`, `rows` and `attend` leaves fewer rows: those whose neighbours it summed.
        A model that says so of itself (`shrinks`) takes `targets` of what it adds to their result, after the
        call: the node itself, residuals, and the layers that it joins. It also calls it where it makes its
        logits, so that nothing is computed for rows that only contributed to others.
        """
        ...

    def labelled(self, embedding: torch.Tensor, rate: float) -> Summed:
        """The input plus the embedded labels `embedding [C, F]` of a share `rate` of the training nodes."""
        ...
