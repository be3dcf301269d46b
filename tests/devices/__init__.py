"""Devices and kernels for tests: a device that does not exist, its tensors, the native kernel, Triton."""
