"""The adapter for TensorFlow; the only package that imports it."""

from watchglass.capture.tensorflow.arrays import TensorFlowArrays as TensorFlowArrays
from watchglass.capture.tensorflow.loop import TensorFlowLoop as TensorFlowLoop
from watchglass.capture.tensorflow.modules import TensorFlowModules as TensorFlowModules
