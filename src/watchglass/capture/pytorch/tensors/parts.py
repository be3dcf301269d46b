"""The parts that capture tensors beyond weights, gradients, updates and outputs, in the order in which they listen."""

from __future__ import annotations

from watchglass.capture.pytorch.tensors.attention import Attention
from watchglass.capture.pytorch.tensors.float8_casts import Float8Casts
from watchglass.capture.pytorch.tensors.functional_activations import FunctionalActivations
from watchglass.capture.pytorch.tensors.input_gradients import InputGradients
from watchglass.capture.pytorch.tensors.inputs import Inputs
from watchglass.capture.pytorch.tensors.loss_arguments import LossArguments
from watchglass.capture.pytorch.tensors.module_entry import ModuleEntry
from watchglass.capture.pytorch.tensors.optimizer_state import OptimizerState
from watchglass.capture.pytorch.tensors.routers import Routers

#: The first two come before ModuleEntry: they must know that a forward began before modules are called.
TENSOR_PARTS = (
    Attention, Float8Casts, ModuleEntry, Inputs, FunctionalActivations, InputGradients, OptimizerState, LossArguments,
    Routers,
)  # fmt: skip
