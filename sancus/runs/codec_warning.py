"""One line to the user when a codec rounds more away than training was seen to stand."""

from __future__ import annotations

from collections.abc import Callable

from sancus.metrics.declared import CODEC_NOISE_LIMIT
from sancus.training.consensus import Record


class CodecWarning:
    """Looks at the noise of every epoch; warns at the first that passes the limit, and never again."""

    def __init__(self, codec: str, warn: Callable[[str], None]) -> None:
        """`codec` is that of embeddings, whose noise is measured."""
        self._codec = codec
        self._warn = warn
        self._told = False

    def epoch(self, record: Record) -> None:
        """The figures of an epoch."""
        noise = record["codec_noise"]
        if self._told or noise is None or noise <= CODEC_NOISE_LIMIT:
            return
        self._told = True
        self._warn(
            f"--codec {self._codec}: in epoch {int(record['epoch'] or 0)} its errors change a row "
            f"{noise:.1f} times as much as rows differ; above {CODEC_NOISE_LIMIT:g} training may fail: "
            "take more bits a value"
        )
