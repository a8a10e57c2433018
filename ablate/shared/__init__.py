"""What both halves use: specs, choices, a run's folder, fingerprints. Never torch."""
