"""Rules about time and machines: phases of steps, and samples of system metrics. One rule per file."""
