"""The verbs that are about Sancus itself: `list` and `doctor`. Neither imports torch before it must."""

from __future__ import annotations

import sys

from sancus.launch.exit_codes import EXIT_FAILED


def list_plugins() -> None:
    """Name every plug-in and preset, what it is, and the paper that it comes from."""
    from rich.console import Console
    from rich.table import Table

    from sancus.codecs import CODECS
    from sancus.comm import BACKENDS
    from sancus.config.papers import PAPERS
    from sancus.config.presets import PRESETS
    from sancus.datasets import READERS
    from sancus.kernels import KERNELS
    from sancus.models import MODELS
    from sancus.partitioners import PARTITIONERS
    from sancus.plans import PLANS
    from sancus.plugins import summary
    from sancus.staleness import POLICIES
    from sancus.trackers import TRACKERS

    tables = {
        "partitioner": PARTITIONERS,
        "plan": PLANS,
        "policy": POLICIES,
        "codec": CODECS,
        "backend": BACKENDS,
        "kernel": KERNELS,
        "model": MODELS,
        "data": READERS,
        "tracker": TRACKERS,
    }
    known = {
        kind: {name: summary(target) for name, target in table.items()} for kind, table in tables.items()
    }
    known["preset"] = {name: preset.summary for name, preset in PRESETS.items()}
    console = Console(highlight=False)
    shown = Table("kind", "name", "what it is", "paper", box=None, pad_edge=False)
    for column in shown.columns[:2]:
        column.no_wrap = True
    for kind, entries in known.items():
        for name, told in entries.items():
            shown.add_row(
                kind, name, told, PAPERS.get((kind, name), ""), end_section=name == list(entries)[-1]
            )
    console.print(shown)


def doctor(*, self_test: bool = True) -> None:
    """Check the installation, and say what to do about what is missing.

    Parameters
    ----------
    self_test
        Also train on two ranks for a few seconds.
    """
    from rich.console import Console
    from rich.text import Text

    from sancus.advise.doctor import examine

    styles = {"ok": "green", "missing": "yellow", "broken": "bold red"}
    console, broken = Console(highlight=False, soft_wrap=True), []
    for finding in examine(self_test=self_test):
        state = Text(f"{finding.state:8}", style=styles[finding.state])
        console.print(state, f"{finding.what:14}", Text(finding.told), sep="")
        if finding.advice:
            console.print(Text(f"{'':22}-> {finding.advice}"))
        broken += [finding.what] if finding.state == "broken" else []
    if broken:
        console.print(f"broken: {', '.join(broken)}")
        sys.exit(EXIT_FAILED)
    console.print("ready")
