"""Reads a printed command line as the program does: the oracle of the printer."""

import typer

from ablate import cli
from ablate.planning.words import read_line, read_options

PLAN = typer.main.get_command(cli.app).commands["plan"]
OPTIONS = ("scale", "across", "each", "change", "design", "name", "until", "margin")


def split_line(words):
    """Return (words, options by name) of a command line behind `ablate plan`."""
    given = PLAN.make_context("plan", list(words)).params
    return list(given["words"] or []), {key: given[key] for key in OPTIONS}


def declare(*words, groups=None):
    """Return what a command line declares."""
    plain_words, options = split_line(words)
    groups = groups or {}
    return read_line(plain_words, groups, read_options(groups, **options))
