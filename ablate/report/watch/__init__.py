"""`watch`: one local page of a sweep, live."""
