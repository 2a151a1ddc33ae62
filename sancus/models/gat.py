"""GAT (Veličković et al. 2018) and GATv2 (Brody, Alon and Yahav 2022), multi-head.

With values `V = H W`, `heads` groups of `d` columns, node `i` takes `Σ_j α_ij V_j` over its neighbours and
itself, and `α_i` is the softmax of scores `e_ij` over the entries of its row:

    GAT     e_ij = LeakyReLU(<a_target, V_i> + <a_source, V_j>)                 (eq. 3)
    GATv2   e_ij = <a, LeakyReLU(H_i W_target + V_j)>                           (eq. 7)

Heads stand side by side in hidden layers; those of the last layer are averaged (GAT, eq. 5-6). Only the
values cross the wire: receivers compute the scores.
"""

from __future__ import annotations

import abc

import torch
import torch.nn.functional as F
from torch import nn

from sancus.errors import UserError
from sancus.kernels.summed import Rowlike
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.settings import ModelSettings
from sancus.models.stack import LayerStack, glorot

SLOPE = 0.2  # of LeakyReLU below 0


class Score(nn.Module, abc.ABC):
    """How an edge is weighed: a `LeakyScorer`, and the query that it is asked with."""

    slope = SLOPE

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    @abc.abstractmethod
    def query(self, own: torch.Tensor, h: Rowlike) -> torch.Tensor:
        """`[n_i, k]` of the own rows, from their values `[n_i, heads·d]` and the layer's input."""

    @abc.abstractmethod
    def key(self, values: torch.Tensor) -> torch.Tensor:
        """`[m, k]` of any rows, from their values `[m, heads·d]`."""

    @abc.abstractmethod
    def score(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """`[E, heads]` of edges, from both ends `[E, k]`."""

    @abc.abstractmethod
    def mix(self) -> torch.Tensor | None:
        """What the columns of a head are weighed with `[heads, d]`; None where there is one."""


class AdditiveScore(Score):
    """GAT's `LeakyReLU(<a_target, V_i> + <a_source, V_j>)`."""

    def __init__(self, f_in: int, heads: int, width: int) -> None:
        super().__init__(heads)
        self.source = glorot(heads, width)
        self.target = glorot(heads, width)

    def query(self, own: torch.Tensor, h: Rowlike) -> torch.Tensor:
        """`<a_target, V_i>` a head, `[n_i, heads]`."""
        return (own.unflatten(1, self.target.shape) * self.target).sum(dim=2)

    def key(self, values: torch.Tensor) -> torch.Tensor:
        """`<a_source, V_j>` a head, `[m, heads]`."""
        return (values.unflatten(1, self.source.shape) * self.source).sum(dim=2)

    def score(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """The nonlinearity of their sum."""
        return F.leaky_relu(query + key, SLOPE)

    def mix(self) -> torch.Tensor | None:
        """A sum is one column a head."""
        return None


class DynamicScore(Score):
    """GATv2's `<a, LeakyReLU(H_i W_target + V_j)>`: which neighbour is best depends on the node."""

    def __init__(self, f_in: int, heads: int, width: int) -> None:
        super().__init__(heads)
        self.target = glorot(f_in, heads * width)
        self.attention = glorot(heads, width)

    def query(self, own: torch.Tensor, h: Rowlike) -> torch.Tensor:
        """`H_i W_target`, `[n_i, heads·d]`."""
        projected: torch.Tensor = h @ self.target
        return projected

    def key(self, values: torch.Tensor) -> torch.Tensor:
        """The values themselves."""
        return values

    def score(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """The nonlinearity comes before the product with `a`."""
        mixed = F.leaky_relu(query + key, SLOPE).unflatten(1, self.attention.shape)
        return (mixed * self.attention).sum(dim=2)

    def mix(self) -> torch.Tensor | None:
        """`a` of every head."""
        return self.attention


class GATLayer(nn.Module):
    """The parameters of one layer; `mean` averages the heads."""

    def __init__(self, f_in: int, width: int, score: Score, *, mean: bool) -> None:
        """`width` columns a head."""
        super().__init__()
        self.weight = glorot(f_in, score.heads * width)
        self.score = score
        self.mean = mean
        self.bias = nn.Parameter(torch.zeros(width if mean else score.heads * width))


class GAT(LayerStack):
    """GAT: neighbours weighed by multi-head attention; needs a plan that sends rows, not sums."""

    linear = False
    normalisation = "symmetric"  # for its pattern, which has the self-loops; its values are not used
    one_weight = False
    make_score: type[AdditiveScore] | type[DynamicScore] = AdditiveScore

    def __init__(self, features: int, classes: int, settings: ModelSettings) -> None:
        hidden_layers = settings.layers - (settings.jumping == "none")
        if hidden_layers and settings.hidden % settings.heads:
            raise UserError(
                f"--hidden {settings.hidden} is not a multiple of --heads {settings.heads}; "
                "the heads of a hidden layer stand side by side in it"
            )
        super().__init__(features, classes, settings)

    def make_layer(self, f_in: int, f_out: int, *, last: bool) -> GATLayer:
        """Heads side by side, or averaged in the last layer."""
        heads = self.settings.output_heads if last else self.settings.heads
        width = f_out if last else f_out // heads
        return GATLayer(f_in, width, self.make_score(f_in, heads, width), mean=last)

    def activate(self, z: torch.Tensor) -> torch.Tensor:
        """ELU, as in the paper."""
        return F.elu(z)

    def apply_layer(
        self, layer: nn.Module, h: Rowlike, exchange: Neighbourhood, depth: int, dropout: float
    ) -> torch.Tensor:
        """`Σ_j α_ij V_j + b` with dropout on `H` and on `α`."""
        assert isinstance(layer, GATLayer)
        score = layer.score

        def query(own: torch.Tensor) -> torch.Tensor:
            return score.query(own, exchange.dropout(exchange.targets(h), depth, dropout))

        share = self.settings.attention_dropout if self.training else 0.0
        z = exchange.attend(h, depth, layer.weight, query, score, dropout=dropout, edge_dropout=share)
        if layer.mean:
            z = z.unflatten(1, (score.heads, -1)).mean(dim=1)
        return z + layer.bias


class GATv2(GAT):
    """GATv2: dynamic attention, where the best neighbour depends on the node."""

    make_score = DynamicScore
