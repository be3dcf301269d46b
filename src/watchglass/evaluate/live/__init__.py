"""The evaluator of a run that goes on, and the process it lives in."""
