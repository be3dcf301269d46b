"""Keras 3, which drives TensorFlow, JAX or PyTorch; the only package that imports it."""

import keras

if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 6):
    raise ImportError(f"Keras {keras.__version__} is not watched, 3.6 and later ones are")

from watchglass.capture.keras.loop import KerasLoop
from watchglass.capture.keras.structure import KerasModules

__all__ = ["KerasLoop", "KerasModules"]
