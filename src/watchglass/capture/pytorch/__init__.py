"""The adapter for PyTorch; the only room that imports it."""

from watchglass.capture.pytorch.adapter import PyTorchAdapter

__all__ = ["PyTorchAdapter"]
