"""Parts that capture tensors beyond weights, gradients, updates and outputs: one file each, listed in ``parts``."""
