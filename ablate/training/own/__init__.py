"""Runs of the user's own training loop: a function, called in a process of its own. Nothing here
imports torch unless that function has.

Used by training/worker.py for `ablate sweep trainer=NAME`.
"""
