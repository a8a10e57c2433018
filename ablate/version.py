"""The version, for whoever prints or records it."""

__version__ = "0.1.0"
FORMAT = 6  # of stores, plans and bundles: one that has another is refused by `errors.other_format`
