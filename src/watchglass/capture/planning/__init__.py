"""Which tensors are captured at which steps, within the overhead budget."""
