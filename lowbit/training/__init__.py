"""From data and a model to a checkpoint: the loop, optimizers, schedules, mixed precision, several ranks."""
