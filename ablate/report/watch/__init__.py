"""`watch`: one local page of a sweep, live.

Used by `ablate watch` (cli/looking.py).
"""
