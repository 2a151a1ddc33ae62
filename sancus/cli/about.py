"""The verbs that are about Sancus itself: `list` and `doctor`. Neither imports torch before it must."""

from __future__ import annotations

import itertools
import sys
from typing import Literal

from sancus.launch.exit_codes import EXIT_FAILED


def list_plugins() -> None:
    """Name every plug-in and preset, what it is, and the paper that it comes from."""
    from rich.console import Console
    from rich.table import Table

    from sancus.config.kinds import KINDS
    from sancus.config.papers import PAPERS
    from sancus.config.presets import PRESETS
    from sancus.plugins import summary

    names = {kind: {name: summary(target) for name, target in KINDS[kind].table.items()} for kind in KINDS}
    names["preset"] = {name: preset.summary for name, preset in PRESETS.items()}
    console = Console(highlight=False)
    table = Table("kind", "name", "what it is", "paper", box=None, pad_edge=False)
    for column in table.columns[:2]:
        column.no_wrap = True
    for kind, entries in names.items():
        for name, line in entries.items():
            paper = PAPERS.get((kind, name), "")
            table.add_row(kind, name, line, paper, end_section=name == list(entries)[-1])
    console.print(table)


def doctor(*, self_test: bool = True, device: Literal["cpu", "cuda"] | None = None) -> None:
    """Check the installation, and say what to do about what is missing.

    Parameters
    ----------
    self_test
        Also train on two ranks for a few seconds.
    device
        Try all GPUs (cuda), or the same without one (cpu), in about five minutes: kernels, and ranks against
        one process on the CPU; copies; an epoch of every preset.
    """
    from rich.console import Console
    from rich.text import Text

    from sancus.advise.doctor import examine

    findings = examine(self_test=self_test)
    if device is not None:
        from sancus.advise.device_check import examine_device

        findings = itertools.chain(findings, examine_device(device))

    styles = {"ok": "green", "missing": "yellow", "broken": "bold red"}
    console, broken = Console(highlight=False, soft_wrap=True), []
    for finding in findings:
        state = Text(f"{finding.state:8}", style=styles[finding.state])
        console.print(state, f"{finding.what:14} ", Text(finding.summary), sep="")
        if finding.advice:
            console.print(Text(f"{'':23}-> {finding.advice}"))
        broken += [finding.what] if finding.state == "broken" else []
    if broken:
        console.print(f"broken: {', '.join(broken)}")
        sys.exit(EXIT_FAILED)
    console.print("ready")
