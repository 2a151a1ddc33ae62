"""Training: schedules, steps, how parameters and ranks agree, exact evaluation."""

SCHEDULES: dict[str, str] = {
    "full": "sancus.training.full:FullBatch",
    "minibatch": "sancus.training.minibatch:MiniBatch",
    "pipeline": "sancus.training.pipeline:Pipeline",
    "async": "sancus.training.asynchronous:Asynchronous",
}
SECTIONS = (
    "model",
    "factors",
    "shape",
    "training",
    "sampling",
    "pipeline",
    "asynchronous",
    "output",
)  # of the settings: a schedule's constructor may ask for them
