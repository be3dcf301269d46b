"""Statistics of tensors that live on a device, read there and brought back without a wait."""
