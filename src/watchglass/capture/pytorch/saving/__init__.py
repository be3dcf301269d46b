"""How parameters and other tensors get into the records of a step."""
