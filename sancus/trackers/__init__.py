"""Trackers: where rank 0 also sends the figures of every epoch, beside the run's own files. Never fatal."""

TRACKERS: dict[str, str] = {
    "tensorboard": "sancus.trackers.tensorboard:TensorBoard",
    "mlflow": "sancus.trackers.mlflow:MLflow",
    "wandb": "sancus.trackers.wandb:WandB",
}
# tracker -> the package that must be installed, and our extra
NEEDS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
