"""Schedule `pipeline`: layers over stages, chunks of rows through them one after another (GNNPipe).

Every stage holds consecutive layers and, on its ranks, the whole graph. In an epoch the chunks go through the
stages in an order that all ranks know; then their gradients come back in the reverse order, and each stage
updates its own weights, once. What a stage does is in `sancus.training.stage`.

Imports no torch: ranks are laid out before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from sancus.comm.layout import Layout
from sancus.errors import UserError
from sancus.metrics.declared import Metric
from sancus.models import MODELS
from sancus.models.settings import ModelSettings
from sancus.plans import AUTO
from sancus.training.pipeline_settings import PipelineSettings
from sancus.training.schedule import Schedule, Work
from sancus.training.settings import TrainingSettings

if TYPE_CHECKING:
    import torch

    from sancus.training.evaluation import Evaluation
    from sancus.training.stage import Stage


class Factors(Protocol):
    """What this schedule looks at in the settings of the traffic."""

    plan: str
    clip: float | None
    order: str


class Pipeline(Schedule):
    """Layers over stages, chunks of rows through them; rows of chunks yet to come are those of before."""

    measures = (
        Metric("stale_share", "share", "entries whose column is of a chunk yet to come; mean", "mean"),
        Metric("chunk_age", "epochs", "age of the rows of chunks yet to come", "max"),
        Metric("bubble_share", "share", "of an epoch, in which a stage did not work or send; mean", "mean"),
    )

    def __init__(
        self,
        pipeline: PipelineSettings,
        model: str,
        shape: ModelSettings,
        training: TrainingSettings,
        factors: Factors,
    ) -> None:
        self.settings = pipeline
        self._model = model
        self._shape = shape
        self._training = training
        self._factors = factors
        self._stage: Stage | None = None

    def layout(self, ranks: int) -> Layout:
        """Stages of equally many ranks, which are parts of the graph; a rank is `stage · W + place`."""
        if self.settings.stages == "auto":
            raise UserError("--stages auto is chosen by sancus train and estimate; name a number here")
        stages = self.settings.stages or ranks
        self._check(ranks, stages)
        if ranks % stages:
            fitting = ", ".join(str(count) for count in range(1, ranks + 1) if ranks % count == 0)
            raise UserError(
                f"--stages {stages}: does not divide the number of ranks, {ranks}; choose from {fitting}"
            )
        return Layout(stages=stages, parts=ranks // stages)

    def _check(self, ranks: int, stages: int) -> None:
        """Refuse settings that have no meaning here."""
        shape = self._shape
        own = self._model.partition(":")[0] not in MODELS
        if own:
            _check_segments(self._model)
        elif self.settings.recompute_first and not _carries_its_first(self._model):
            raise UserError(
                f"--recompute-first: no tensor that the first segment of {self._model} makes goes through "
                "all layers as it is; leave it out, or choose --model gcnii"
            )
        elif stages > shape.layers:
            raise UserError(
                f"--stages {stages}: the model has {shape.layers} graph layers, and a stage needs at least "
                f"one; choose at most {shape.layers}"
            )
        if shape.jumping != "none" and stages > 1:
            raise UserError(
                f"--jumping {shape.jumping}: the rows of all layers would be handed from stage to stage; "
                "choose --jumping none, or --stages 1"
            )
        if shape.norm == "batch" and self.chunks(ranks) > 1:
            raise UserError(
                "--norm batch: its statistics are of all rows, which no chunk has; "
                "choose --norm layer, or --chunks 1"
            )
        without = "leave it out, or choose --schedule full"
        if self._training.label_rate:
            raise UserError(f"--label-rate: labels are drawn for a pass of all rows; {without}")
        if self._training.parameters != "sum":
            raise UserError(f"--parameters {self._training.parameters}: stages sum gradients; {without}")
        if self._factors.clip is not None:
            raise UserError(f"--clip is of the gradients of all rows, which no chunk has; {without}")
        if self._factors.order not in ("auto", "aggregate-kept"):
            raise UserError(
                f"--order {self._factors.order}: chunks are summed before they are multiplied, as stale rows "
                "meet the weights of now; choose --order auto"
            )

    def chunks(self, ranks: int) -> int:
        """`K`, or 4 a rank."""
        return self.settings.chunks_for(ranks)

    def order(self, epoch: int, chunks: int, seed: int) -> list[int]:
        """The chunks in the order of an epoch `[K]`; every rank computes it alone."""
        forward = list(range(chunks))
        if self.settings.chunk_order == "alternate" and epoch % 2:
            return forward[::-1]
        if self.settings.chunk_order == "shuffle":
            forward.sort(key=lambda chunk: xxhash.xxh3_64_intdigest(f"{seed} {epoch} {chunk}".encode()))
        return forward

    def prepare(self, work: Work) -> Evaluation:
        """Cut the model into stages and this rank's rows into chunks."""
        from sancus.training.stage import Stage

        automatic = self._factors.plan == AUTO and self._shape.dropout > 0
        self._stage = Stage(work, self.settings, send_rows=automatic)
        return self._stage.evaluation

    def train_epoch(self, epoch: int, work: Work) -> float:
        """All chunks forward, all chunks back in the reverse order, one update of the stage's weights."""
        stage, site = self._stage, work.site
        assert stage is not None and site is not None
        return stage.train_epoch(epoch, self.order(epoch, stage.chunks, site.seed))

    def owns(self, name: str) -> bool:
        """Whether this rank's stage has a parameter or buffer."""
        assert self._stage is not None
        return self._stage.owns(name)

    def collect(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What all stages hold between them."""
        assert self._stage is not None
        return self._stage.collect(tensors)

    def state(self) -> dict[str, torch.Tensor]:
        """Histories by layer."""
        assert self._stage is not None
        return self._stage.tables.state()

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with the histories of the stage's layers."""
        assert self._stage is not None
        self._stage.restore(state)

    def figures(self) -> dict[str, float]:
        """How much of the last epoch was stale, and how old; histories of chunks count as such."""
        assert self._stage is not None
        return self._stage.figures()

    def describe(self) -> dict[str, Any]:
        """Stages, chunks and what crosses."""
        assert self._stage is not None
        return self._stage.describe()


def _carries_its_first(model: str) -> bool:
    """Whether a model of ours hands on what its first segment made, beside what the last one did."""
    from sancus.models.build import find_model

    return getattr(find_model(model), "carries", 1) == 2


def _check_segments(model: str) -> None:
    """Refuse a model of the user's own that cannot be cut; imports it."""
    from sancus.models.build import find_model
    from sancus.models.contract import traits_of
    from sancus.models.trace import no_segments

    if traits_of(find_model(model)).segments is None:
        raise UserError(no_segments(model))
