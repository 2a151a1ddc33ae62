"""The first lines of `sancus`, before its imports, which take most of a second.

A signal that arrives meanwhile waits, and is then answered as one that arrives later.
"""

from __future__ import annotations

from sancus.launch.interrupt import block_signals


def main() -> None:
    """Entry point of `sancus` and of `python -m sancus`."""
    block_signals()
    from sancus.cli.app import main as command_line

    command_line()
