"""Whether codecs save more time than they take."""

from __future__ import annotations

from experiments.engine.measured import Measured

LOW = ["int8", "int4", "int2", "int1"]


def text(measured: Measured) -> str:
    """The epoch of every codec beside fp32."""
    return (
        f"**What came out.** From `int8` down an epoch is {measured.span('speedup', codec=LOW)} as fast as in `fp32`, its computation "
        f"{measured.span('compute_seconds', codec=LOW)} s (`fp32` {measured.show('compute_seconds', codec='fp32')} s). `fp16` halves the "
        f"bytes and is {measured.show('speedup', codec='fp16')} as fast. All bytes are {measured.span('fewer', codec=LOW)} fewer."
    )


def composition(measured: Measured) -> str:
    """The sentence of docs/composition.md."""
    return (
        f"*Do codecs take less time than they save?* Over links of {measured.content['cases'][0]['link']}, with "
        f"{measured.content['cases'][0]['ranks']} ranks, a core each, an epoch that sends {measured.show('all_mb', codec='fp32')} MB in `fp32` "
        f"takes {measured.show('seconds', codec='fp32')} s, with `int8`, `int4`, `int2` and `int1` {measured.span('seconds', codec=LOW)} s, with "
        f"`fp16` {measured.show('seconds', codec='fp16')} s ({measured.machine}; "
        "[experiments/codec_time](../experiments/codec_time/README.md))."
    )
