"""Turns a plan into finished runs: the driver, its next step, launchers, estimates."""
