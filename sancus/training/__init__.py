"""Training: schedules, steps, how parameters and ranks agree, exact evaluation."""

SCHEDULES: dict[str, str] = {
    "full": "sancus.training.full:FullBatch",
}
