"""The parts that capture tensors beyond weights, gradients, updates and outputs, in the order in which they listen."""

from __future__ import annotations

from watchglass.capture.pytorch.activations import FunctionalActivations
from watchglass.capture.pytorch.attention import Attention
from watchglass.capture.pytorch.entries import Entries
from watchglass.capture.pytorch.input_gradients import InputGradients
from watchglass.capture.pytorch.inputs import Inputs
from watchglass.capture.pytorch.optimizer_state import OptimizerState
from watchglass.capture.pytorch.routers import Routers
from watchglass.capture.pytorch.targets import LossArguments

#: Attention must know that a forward began before it is told which modules are called, and Entries tells of them.
TENSOR_PARTS = (
    Attention, Entries, Inputs, FunctionalActivations, InputGradients, OptimizerState, LossArguments, Routers,
)  # fmt: skip
