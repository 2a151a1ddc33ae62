"""Training: the epoch loop, its loss, exact evaluation, checkpoints."""
