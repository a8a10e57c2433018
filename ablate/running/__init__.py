"""A plan to finished runs: the driver, its next step, launchers, estimates."""
