"""The settings of a pipeline (`--schedule pipeline`, GNNPipe). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sancus.errors import UserError

ChunkOrder = Literal["shuffle", "fixed", "alternate"]
CHUNKS_A_RANK = 4  # K = 4 M (GNNPipe §3.3)
FREE = {"may_change": True}  # a resumed run may set it anew (see `sancus.config.settings`)


@dataclass(frozen=True)
class PipelineSettings:
    """Layers over stages, chunks of rows through them."""

    stages: int | Literal["auto"] = field(default=0, metadata=FREE)
    """Stages of --schedule pipeline, each on ranks/stages ranks; 0: one a rank; auto: by predicted time."""
    chunks: int = 0
    """Chunks of rows that go through the stages one after another; 0: 4 a rank, as in the paper."""
    chunk_order: ChunkOrder = "shuffle"
    """Order of the chunks: drawn anew every epoch, always the same, or forward and back in turn."""
    history_every: int = 1
    """Rows of chunks not yet there are those of the last epoch whose number is a multiple of this."""
    history_start: Literal["exact", "zeros"] = "exact"
    """Rows of chunks before they were ever computed: those of an exact pass, or zeros."""
    stale_gradients: bool = False
    """Chunks not yet there give the gradients of the epoch before; else none, which is exact."""
    balance: Literal["even", "cost"] = field(default="even", metadata=FREE)
    """Stages of equally many layers, or of about equal cost, measured before the first epoch."""
    recompute: bool = field(default=False, metadata=FREE)
    """Forget what is inside a chunk until its gradients come back, and compute it again."""
    recompute_first: bool = field(default=False, metadata=FREE)
    """Compute on every stage what only the first segment makes (h⁰ of gcnii), instead of handing it on."""
    boundary_codec: str = "fp32"
    """Bits on the wire between stages."""

    def __post_init__(self) -> None:
        if self.stages != "auto" and self.stages < 0:
            raise UserError(
                f"--stages {self.stages}: must be at least 1; 0 means one a rank, auto the predicted best"
            )
        if self.chunks < 0:
            raise UserError(f"--chunks {self.chunks}: must be at least 1; 0 means {CHUNKS_A_RANK} a rank")
        if self.history_every < 1:
            raise UserError(f"--history-every {self.history_every}: must be at least 1")

    def chunks_for(self, ranks: int) -> int:
        """`K`, the number of chunks."""
        return self.chunks or CHUNKS_A_RANK * ranks
