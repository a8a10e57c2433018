"""The version, for whoever prints or records it."""

__version__ = "0.1.0"
