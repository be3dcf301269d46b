"""The adapter for TensorFlow; the only package that imports it."""

from watchglass.capture.tensorflow.arrays import TensorFlowArrays as TensorFlowArrays
