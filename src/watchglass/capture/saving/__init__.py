"""How tensors and numbers get into records."""
