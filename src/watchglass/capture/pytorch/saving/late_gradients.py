"""Gradients that are not finite, on a device: known once their norms have arrived."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.records import facts

_MAX_NAMED = 32


class LateGradients:
    """The gradients on a device that are not finite: known once their norms have arrived.

    Args:
        norms: Norms, as they come together, each with the places of its gradients in ``names``.
        names: Of the gradients' parameters.
    """

    def __init__(self, norms: Sequence[tuple[DeviceRows, list[int]]], names: Sequence[str]) -> None:
        self._norms = norms
        self._names = names

    def bad(self) -> list[str]:
        """Those that are not finite, in order of the model. Waits for the device."""
        found = [index for norms, indices in self._norms for index in np.array(indices)[~np.isfinite(norms.resolve())]]
        return [self._names[index] for index in sorted(found)]

    def describe(self) -> facts.NonfiniteGradients | None:
        """The fact about them, None where all are finite. Waits for the device."""
        bad = self.bad()
        return describe_bad(bad) if bad else None


def describe_bad(names: Sequence[str]) -> facts.NonfiniteGradients:
    """The fact about gradients of these parameters: backward runs from the last layer to the first."""
    tensors = tuple(f"gradient/{name}" for name in names[-_MAX_NAMED:])
    return facts.NonfiniteGradients(tensors, len(names), tensors[-1])
