"""What goes wrong between ranks."""


class CommError(RuntimeError):
    """A collective failed or timed out: usually another rank died, or did something else."""


class DisagreementError(RuntimeError):
    """Two ranks stand at different places of the run, or hold different decisions; one is named."""
