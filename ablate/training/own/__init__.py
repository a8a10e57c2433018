"""Runs of a training loop of the user's own: a function, called in a process of its own. No torch,
but where that function has it."""
