"""Statistics of tensors on a device, computed there and copied back without a wait."""
