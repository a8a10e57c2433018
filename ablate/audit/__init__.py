"""Is it true: verify, re-training, bundles, doctor."""
