"""The noise of a gradient from those of single samples: of some weights of linear layers. For the recorder's thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Inputs and outputs of a layer whose weights are sampled, and rows (samples times positions) of its batch.
INPUTS, OUTPUTS, ROWS = 64, 16, 4096
#: Most layers, spread over the model.
LAYERS = 8
#: Steps between two samples: a sixteenth of the steps so far, within these bounds.
_LEAST_APART, _MOST_APART = 2, 64


@dataclass(frozen=True)
class SampledLayer:
    """What a linear layer got for some samples of a batch, and the gradients that came back."""

    name: str  #: Name of its weight.
    size: int  #: Number of its weights.
    inputs: NDArray[Any]  #: Some inputs, float[samples, positions, inputs].
    gradients: NDArray[Any]  #: Gradients of some outputs, float[samples, positions, outputs].


def next_after(first: int, step: int) -> int:
    """The step from which on the next sample is due.

    Args:
        first: The step of the first sample.
        step: The step of the latest one.
    """
    return step + min(max((step - first) // 16, _LEAST_APART), _MOST_APART)


def noise_of(layers: Sequence[SampledLayer]) -> tuple[float, float] | None:
    """Noise and signal of the gradients of samples; None where they are not finite.

    The gradient of a weight is a sum over samples, each with its input times the gradient of its output. The sums over
    weights count each layer as if all its weights were sampled.

    Args:
        layers: The layers, all with the same samples.
    """
    noise = signal = 0.0
    samples = len(layers[0].inputs)
    for layer in layers:
        each = np.einsum("nto,ntk->nok", layer.gradients, layer.inputs, dtype=np.float64, casting="unsafe")
        each = each.reshape(samples, -1)
        variance = float(each.var(0, ddof=1).sum())
        share = layer.size / each.shape[1]
        noise += share * variance
        # The square of a mean exceeds that of the true one by the noise that is left in it.
        signal += share * (float(np.square(each.mean(0)).sum()) - variance / samples)
    if not (math.isfinite(noise) and math.isfinite(signal)):
        return None
    return float(f"{noise:.6g}"), float(f"{signal:.6g}")
