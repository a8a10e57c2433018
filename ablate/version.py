"""The version, for whoever prints or records it."""

__version__ = "0.1.0"
FORMAT = 6  # of stores, plans and bundles; any other is refused (`errors.other_format_error`)
