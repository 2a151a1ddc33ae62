"""How a process of ours ends, as its exit code tells launchers and shells."""

from __future__ import annotations

import signal

EXIT_FAILED = 1
EXIT_USER = 2  # a mistake of the user's
EXIT_PEER = 70  # this rank only lost the others
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_HUNG_UP = 128 + signal.SIGHUP
EXIT_SAVED = (EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_HUNG_UP)  # a signal ended the run
EXIT_PIPE = 128 + signal.SIGPIPE  # nobody reads our output any more


def signal_name(number: int) -> str:
    """`SIGTERM`; `signal 40` for one of the real-time signals, which have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(number: int) -> int:
    """The exit code of a run that a signal ended; SIGUSR1 is how Slurm announces SIGTERM."""
    return EXIT_TERMINATED if number == signal.SIGUSR1 else 128 + number
