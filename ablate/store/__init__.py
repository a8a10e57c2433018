"""What is kept: the ledger, looks, provenance, and what may be deleted."""
