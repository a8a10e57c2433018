"""Results to numbers: scores, tables, verdicts, published numbers, statistics."""
