"""Whether saturating activations lie between layers: by kind of module, or by inputs and gradients of the layers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from watchglass.records import INACTIVE_UNITS, ModuleKind, Role, TensorInfo
from watchglass.rules import signals
from watchglass.rules.graph import forward
from watchglass.tables import Statistics, StepView

#: Derivative per layer below which an activation must be saturating. A sigmoid has at most 0.25, GELU and SiLU about
#: 0.5 near zero, ReLU 0.7 in the root mean square.
_SMALL_DERIVATIVE = 0.35
#: Statistics of weights, gradients and inputs that show such activations.
OF_SATURATION = ("rms", "nonfinite", "zero_ratio", "sum", "l2", "min", "max")


def saturating_between(view: StepView, gradients: Statistics, first: TensorInfo, last: TensorInfo) -> list[str]:
    """Kinds of saturating activations between two layers, empty for none: ``["Sigmoid"]``, ``["sigmoid-like"]``.

    Args:
        view: The step.
        gradients: Statistics of the gradients of weights, first layer first.
        first: The gradient of the first layer.
        last: That of the last layer.
    """
    present = {name for kind, name in signals.modules(view).values() if kind == ModuleKind.SATURATING}
    captured = (info for info in view.catalog if first.layer_index <= info.layer_index)
    present |= {info.module_type for info in captured if info.module_kind is ModuleKind.SATURATING}
    graph = forward.latest(view)
    if not graph.whole:
        if present:
            return sorted(present)
    elif passed := graph.saturating_in_a_row(*(info.name.partition("/")[2] for info in (first, last))):
        types = {name.lower(): name for name in present}
        return sorted({types.get(each, each) for each in passed})
    elif graph.shortcuts:
        return []
    # torch.sigmoid(x) has no module, but the next layer receives its values.
    inputs = view.statistics(Role.INPUT)
    inside = np.array(
        [first.layer_index < info.layer_index <= last.layer_index for info in inputs.tensors], dtype=np.bool_
    )
    inner = inputs.where(inside & (inputs.nonfinite == 0))
    if len(inner) >= 2:
        if bool(np.all(_like_sigmoid(inner))):
            return ["sigmoid"]
        if bool(np.all(_like_tanh(inner))):
            return ["tanh"]
    derivatives = _derivatives(view, gradients)
    rectified = bool(view.rows(INACTIVE_UNITS))
    if not rectified and len(derivatives) >= 3 and float(np.median(derivatives)) < _SMALL_DERIVATIVE:
        return ["sigmoid-like"]
    return []


def _like_sigmoid(inputs: Statistics) -> npt.NDArray[np.bool_]:
    """Which inputs look like the output of a sigmoid: all in (0, 1), or that with zeros from dropout among them.

    Dropout divides the values that it keeps by their share. The kept values of a sigmoid lie close together; the
    positive half of a normal distribution (ReLU) has a spread of three quarters of its mean.
    """
    kept = 1 - inputs.zero_ratio
    with np.errstate(all="ignore"):
        mean = inputs.sum / (inputs.count - inputs.zero)
        spread = np.sqrt(np.maximum(inputs.l2**2 / (inputs.count - inputs.zero) - mean**2, 0)) / mean
    plain = (inputs.min > 0) & (inputs.max <= 1)
    thinned = (inputs.min == 0) & (inputs.max * kept <= 1.05) & (spread < 0.5) & (mean * kept > 0.2)
    return np.asarray(plain | thinned)


def _like_tanh(inputs: Statistics) -> npt.NDArray[np.bool_]:
    """Which inputs look like the output of tanh, perhaps after dropout: in (-1, 1), with many of both signs."""
    kept = 1 - inputs.zero_ratio
    return np.asarray((inputs.min < -0.2) & (inputs.min * kept >= -1.05) & (inputs.max * kept <= 1.05))


def _derivatives(view: StepView, gradients: Statistics) -> npt.NDArray[np.float64]:
    """Estimated derivative of the activation between each pair of neighbouring layers, where both are known.

    Backpropagation multiplies the error by the transposed weight and by the derivative. So a decrease of the gradient
    from one layer to the one before that the spread of the weight does not explain is due to the activation. With
    errors of unit spread, a weight with ``n`` rows of spread ``s`` passes on ``s * sqrt(n)``.
    """
    weights = view.statistics(Role.WEIGHT, min_dims=2)
    rms = dict(zip(weights.names, weights.rms.tolist(), strict=True))
    names = [name.rpartition("/")[2] for name in gradients.names]
    found: list[float] = []
    for i in range(len(names) - 1):
        shape, after = gradients.tensors[i + 1].shape, rms.get(names[i + 1], 0.0)
        passed = after * float(np.sqrt(np.prod([shape[0], *shape[2:]]))) if shape else 0.0
        here, there = float(gradients.rms[i]), float(gradients.rms[i + 1])
        if passed > 0 and here > 0 and there > 0:
            found.append(here / there / passed)
    return np.array(found)
