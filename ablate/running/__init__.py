"""From a plan to finished runs: the driver, its launchers and its loggers."""
