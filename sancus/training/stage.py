"""A stage of a pipeline on one rank: its layers, its chunks, and its links to the stages before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import xxhash
from safetensors.torch import load, save
from torch import nn

from sancus.comm.errors import DisagreementError
from sancus.comm.group import Group
from sancus.comm.records import gather_bytes, gather_json
from sancus.errors import UserError
from sancus.exchange.chunk_graph import ChunkGraph, Recorder
from sancus.exchange.chunk_tables import ChunkTables
from sancus.exchange.encoding import Encoder
from sancus.exchange.full_graph import FullGraph
from sancus.models.contract import Segment, State
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.trace import Piece, trace
from sancus.plans import changes
from sancus.plans.chunked import cut_operator, stale_share
from sancus.plans.halo import Halo
from sancus.training.balance import measured_costs
from sancus.training.evaluation import Evaluation
from sancus.training.first_segment import handed_on, joined, sum_shared
from sancus.training.parameter_sync import check_gradients
from sancus.training.pipeline_settings import PipelineSettings
from sancus.training.schedule import Work
from sancus.training.stage_link import StageLink
from sancus.training.stages import Stages, split_by_cost, split_evenly, with_first
from sancus.training.timeline import Timeline, bubble_formula

Tensors = list[torch.Tensor]  # rows [·, f] of one chunk, or of all


class Stage:
    """Consecutive segments of the model, for the own rows of all chunks."""

    def __init__(self, work: Work, settings: PipelineSettings, *, send_rows: bool = False) -> None:
        """All ranks make theirs together; `send_rows`: in a stage rows cross, not sums of them.

        Stale rows of others then get the dropout of this epoch; in sums that of the epoch when they crossed.
        """
        assert work.site is not None
        site, whole, model = work.site, work.neighbourhood, work.step.model
        check_factors(whole)
        pieces = trace(model, site.shard.manifest["graph"]["features"])
        self._work = work
        self._settings = settings
        self.split, self.seconds = cut_in_stages(work, settings, pieces)
        self.health = work.step.health  # of all ranks
        sizes = site.shard.chunk_sizes
        make_plan = partial(Halo, bench=site.bench) if send_rows else site.make_plan
        cut = cut_operator(site.operator, sizes, make_plan, site.bench)
        self.tables = ChunkTables(
            whole,
            cut,
            site.seed,
            every=settings.history_every,
            stale_gradients=settings.stale_gradients,
            recompute=settings.recompute,
        )
        self.graph = ChunkGraph(self.tables)
        encoder = Encoder(site.make_codec(settings.boundary_codec), seed=site.seed)
        like = torch.empty(0, dtype=site.bench.dtype, device=site.bench.device)
        self.link = StageLink(work.mesh.group("stages"), self.split.columns, encoder, like)
        self.evaluation = StageEvaluation(work.evaluation.exchange, work.evaluation.task, self)
        self._rows = [rows.stop - rows.start for rows in cut.rows]
        self.chunks = len(self._rows)  # `K`
        self._tasks = [
            work.task.restricted(torch.arange(rows.start, rows.stop, device=like.device)) for rows in cut.rows
        ]
        self._random: dict[int, torch.Tensor] = {}  # the state of torch's generator as each chunk came
        self._entries = cut.entries()
        self.timeline = Timeline(whole.group.stopwatch.now)
        self._stale_share = 0.0
        self._age = 0
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and self.owns(name))

    def owns(self, name: str) -> bool:
        """Whether the stage has a parameter or buffer."""
        return self.split.owns(self.link.stage, name)

    def collect(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What all stages hold between them, from what this one has; equal on all of them."""
        mine = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        found: dict[str, torch.Tensor] = {}
        for content in gather_bytes(self._work.mesh.group("stages"), mine, self.tables.whole.nodes.device):
            found |= load(content)
        return found

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with the histories of the stage's layers, whatever stages there were before."""
        layers = self.split.layers[self.link.stage]
        mine = {name: value for name, value in state.items() if int(name.partition("/")[0]) in layers}
        self.tables.restore(mine)

    def train_epoch(self, epoch: int, order: Sequence[int]) -> float:
        """All chunks forward in this order, back in the reverse one, one update; this rank's loss."""
        work, link = self._work, self.link
        work.neighbourhood.begin_epoch(epoch)
        agree_on_order(work.mesh.group("all"), epoch, order, self.tables.whole.nodes.device)
        if not self.tables.filled:
            self._fill(work.step.model)
        self.tables.begin_epoch(epoch)
        self._age = 0 if self.chunks == 1 else epoch % self._settings.history_every + 1
        self._stale_share = stale_share(self._entries, order)
        link.tainted = False
        self.timeline.begin()
        work.step.model.train()
        work.step.optimizer.zero_grad()
        link.expect("forward", order, self._rows)
        link.expect("backward", order[::-1], self._rows)
        came, gone, loss = self._forward(order)
        if not link.tainted:
            work.step.check_loss(loss)
        self._backward(order[::-1], came, gone)
        link.finish()
        self._agree()
        self.timeline.end()
        work.step.move()
        return loss

    def _forward(self, order: Sequence[int]) -> tuple[dict[int, Tensors], dict[int, Tensors], float]:
        """What came and what was made of it, by chunk; the last stage's is the loss."""
        work, link, timeline = self._work, self.link, self.timeline
        came: dict[int, Tensors] = {}
        gone: dict[int, Tensors] = {}
        total = 0.0
        for chunk in order:
            waiting = timeline.at("wait", "forward", chunk)
            came[chunk] = [] if link.first else link.receive("forward", chunk, waiting)
            for rows in came[chunk]:
                rows.requires_grad_()
            self._random[chunk] = torch.get_rng_state()
            with timeline.at("work", "forward", chunk), work.step.group.stopwatch.at("dense"):
                made = self._made(chunk, came[chunk], gradients=not self._settings.recompute)
                total += made[0].item() if link.last else 0.0
            if not link.last:
                with timeline.at("send", "forward", chunk):
                    link.send("forward", chunk, made, self.health)
            gone[chunk] = [] if self._settings.recompute else made
        return came, gone, total

    def _made(self, chunk: int, came: Tensors, *, gradients: bool) -> Tensors:
        """What the stage makes of a chunk, or the loss of it."""
        self.graph.enter(chunk)
        model = self._work.step.model
        with torch.set_grad_enabled(gradients):
            made = self._through(model, came, self.graph)
            return [self._tasks[chunk].loss(made[0])] if self.link.last else made

    def _made_again(self, chunk: int, came: Tensors) -> Tensors:
        """The same as in the forward pass, with gradients: all that it reads is as it was then."""
        self.tables.again = True
        try:
            with torch.random.fork_rng():
                torch.set_rng_state(self._random[chunk])
                return self._made(chunk, came, gradients=True)
        finally:
            self.tables.again = False

    def _through(self, model: nn.Module, came: Tensors, graph: Neighbourhood) -> Tensors:
        """Through all segments of the stage; what it hands on, or logits."""
        every: Sequence[Segment] = model.segments()  # type: ignore[operator]
        state: State = (graph.input,) if self.link.first else joined(self.split, came, every[0], graph)
        made = run(every[self.split.segments[self.link.stage]], state, graph)
        return made if self.link.last else handed_on(self.split, made)

    def _backward(self, order: Sequence[int], came: dict[int, Tensors], gone: dict[int, Tensors]) -> None:
        """Gradients of what came, from those of what was made of it."""
        link, timeline, stopwatch = self.link, self.timeline, self._work.step.group.stopwatch
        for chunk in order:
            waiting = timeline.at("wait", "backward", chunk)
            given = [] if link.last else link.receive("backward", chunk, waiting)
            with timeline.at("work", "backward", chunk), stopwatch.at("dense"):
                made = gone.pop(chunk) or self._made_again(chunk, came[chunk])
                given = given or [torch.ones_like(made[0])]
                pairs = [(h, gradient) for h, gradient in zip(made, given, strict=True) if h.requires_grad]
                if pairs:
                    torch.autograd.backward([h for h, _ in pairs], [gradient for _, gradient in pairs])
                self.tables.leave(chunk)
            rows = came.pop(chunk)
            if not link.first:
                gradients = [h.grad if h.grad is not None else torch.zeros_like(h) for h in rows]
                with timeline.at("send", "backward", chunk):
                    link.send("backward", chunk, gradients, self.health)

    def _fill(self, model: nn.Module) -> None:
        """Histories of before the first epoch: those of an exact pass, or zeros (GNNPipe §3.3)."""
        model.eval()
        zeros = self._settings.history_start == "zeros"
        graph = Recorder(self.tables, zeros=zeros)
        with torch.no_grad(), self._work.neighbourhood.exact():
            self.whole_pass(model, graph, self._work.neighbourhood)
        self.tables.filled = True

    def whole_pass(self, model: nn.Module, graph: Neighbourhood, whole: Any) -> torch.Tensor | None:
        """All own rows through the stage, in full precision; logits `[n_i, C]` on the last stage."""
        link = self.link
        made = self._through(model, [] if link.first else link.take_over(len(whole.nodes)), graph)
        if link.last:
            return made[0]
        link.pass_on(made)
        return None

    def _agree(self) -> None:
        """All ranks stop together where one met a number that is not finite; else stages sum what they share.

        Before any weight has moved.
        """
        mesh, device = self._work.mesh, self.tables.whole.nodes.device
        if not self.link.tainted:
            check_gradients(self._work.step.model, mesh.group("replicas"), self.health)
        mesh.group("all").desk.checks.read()
        bad = torch.tensor([self.health.bad], dtype=torch.uint8, device=device)
        if bool(mesh.group("all").all_gather(bad).any()):
            self.health.stop("", device)
        sum_shared(self.split, self._work.step.model, mesh.group("stages"))

    def figures(self) -> dict[str, float]:
        """Of the last epoch."""
        crossing = self._work.neighbourhood.crossing.figures()
        return {
            "stale_share": self._stale_share,
            "chunk_age": float(self._age),
            "bubble_share": self.timeline.bubble,
            "history_bytes": float(crossing.history_bytes + self.tables.nbytes),
        }

    def describe(self) -> dict[str, Any]:
        """Facts of the run, and what every rank did when in its last epoch."""
        mesh, device = self._work.mesh, self.tables.whole.nodes.device
        layout = mesh.layout
        return {
            "stages": layout.stages,
            "ranks_a_stage": layout.parts,
            "chunks": self.chunks,
            "segments": [[part.start, part.stop] for part in self.split.segments],
            "boundary_columns": [list(columns) for columns in self.split.columns[:-1]],
            **({"segment_seconds": self.seconds} if self.seconds else {}),
            "bubble_formula": bubble_formula(layout.stages, self.chunks),
            "timeline": gather_json(mesh.group("all"), self.timeline.to_plain(), device),
        }


@dataclass(frozen=True)
class StageEvaluation(Evaluation):
    """An exact pass through all stages, one after another; all of them get the logits."""

    stage: Stage

    def logits(self, model: nn.Module) -> torch.Tensor:
        """Logits `[n_i, C]` of the own rows."""
        model.eval()
        link, exchange = self.stage.link, self.exchange
        with torch.no_grad(), exchange.exact():
            logits = self.stage.whole_pass(model, exchange, exchange)
            if logits is None:
                (classes,) = self.stage.split.columns[-1]
                like = link.like
                logits = like.new_empty(len(exchange.nodes), classes)
            return link.share_last(logits.contiguous())


def cut_in_stages(
    work: Work, settings: PipelineSettings, pieces: Sequence[Piece]
) -> tuple[Stages, list[float]]:
    """Which segments each stage has; and the seconds of every segment, where they were measured."""
    count, seconds, model = work.mesh.layout.stages, [], work.step.model
    if settings.balance == "cost" and count > 1:
        segments: Sequence[Segment] = model.segments()  # type: ignore[operator]
        seconds = measured_costs(model, segments, work.neighbourhood, work.mesh.group("all"))
        split = split_by_cost(pieces, count, seconds)
    else:
        split = split_evenly(pieces, count)
    return (with_first(split, pieces) if settings.recompute_first else split), seconds


def run(segments: Sequence[Segment], state: State, graph: Neighbourhood) -> Tensors:
    """One after another."""
    for segment in segments:
        state = segment(state, graph)
    return [h for h in state if isinstance(h, torch.Tensor)]


def check_factors(whole: FullGraph) -> None:
    """Refuse what has no meaning where rows cross chunk by chunk."""
    if whole.group.size == 1:
        return
    if changes(whole.plan):
        raise UserError("--schedule pipeline: rows that are drawn anew cannot be history; choose --plan halo")
    if whole.crossing.policies["forward"].absent and whole.plan.picks_rows:
        raise UserError("--staleness drop: the ranks of a stage need each other's rows; choose always")


def agree_on_order(everyone: Group, epoch: int, order: Sequence[int], device: torch.device) -> None:
    """A rank whose chunks would go in another order is named on all, before any of them crosses.

    No library says so by itself: messages of another length end a process of gloo.
    """
    digest = xxhash.xxh3_64_intdigest(repr(list(order)).encode()) >> 1
    mine = torch.tensor([digest], dtype=torch.int64, device=device)
    digests = everyone.all_gather(mine).flatten().tolist()
    odd = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if odd:
        raise DisagreementError(
            f"rank {odd[0]} disagrees with rank 0 in epoch {epoch}: its chunks go in another order"
        )
