"""The evaluator of an active run, and its process."""
