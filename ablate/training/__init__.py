"""The training half: the worker, its training, tasks, data and models."""
