"""Keras 3, which drives TensorFlow, JAX or PyTorch; the only package that imports it."""

from watchglass.capture.keras.loop import KerasLoop
from watchglass.capture.keras.structure import KerasModules

__all__ = ["KerasLoop", "KerasModules"]
