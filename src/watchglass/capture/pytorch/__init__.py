"""The adapter for PyTorch; the only package that imports it."""

from watchglass.capture.pytorch.adapter import PyTorchAdapter
from watchglass.capture.pytorch.framework import PyTorchLoop, PyTorchModules
from watchglass.capture.pytorch.saving.reduce import PyTorchArrays

__all__ = ["PyTorchAdapter", "PyTorchArrays", "PyTorchLoop", "PyTorchModules"]
