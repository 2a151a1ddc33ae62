"""Trackers: where rank 0 also sends the figures of every epoch, beside the run's own files. Never fatal."""

TRACKERS: dict[str, str] = {
    "tensorboard": "sancus.trackers.tensorboard:TensorBoard",
}
NEEDS = {"tensorboard": "tensorboard"}  # tracker -> the package that must be installed, and our extra
