"""Training: schedules, steps, how parameters and ranks agree, exact evaluation."""

SCHEDULES: dict[str, str] = {
    "full": "sancus.training.full:FullBatch",
    "minibatch": "sancus.training.minibatch:MiniBatch",
    "pipeline": "sancus.training.pipeline:Pipeline",
}
SECTIONS = (
    "model",
    "factors",
    "shape",
    "training",
    "sampling",
    "pipeline",
)  # of the settings: a schedule's constructor may ask for them
