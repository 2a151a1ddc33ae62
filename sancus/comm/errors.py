"""What a transport raises."""


class CommError(RuntimeError):
    """A collective failed or timed out: usually another rank died, or did something else."""
