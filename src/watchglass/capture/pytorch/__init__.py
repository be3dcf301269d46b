"""The adapter for PyTorch; the only package that imports it."""

from watchglass.capture.pytorch.adapter import PyTorchAdapter
from watchglass.capture.pytorch.framework import PyTorch

__all__ = ["PyTorch", "PyTorchAdapter"]
