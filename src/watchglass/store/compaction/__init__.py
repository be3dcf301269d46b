"""Compaction of ended runs: generations, their lease and pins. Removal of runs and raw tensors."""
