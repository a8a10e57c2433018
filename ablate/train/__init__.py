"""Training a run: the loop, its optimiser and schedule, its checkpoints."""
