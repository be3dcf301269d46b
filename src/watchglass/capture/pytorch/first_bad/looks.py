"""The extremes of tensors: enough to tell whether all values are finite, at once on the CPU, later on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.reduce import plain


class Look:
    """The smallest and the largest value of a tensor, both NaN where it holds one.

    Attributes:
        low: The smallest.
        high: The largest.
        coming: Both on the device where they still are; None once they are here.
    """

    __slots__ = ("coming", "high", "low")

    def __init__(self, low: float = math.nan, high: float = math.nan, coming: Tensor | None = None) -> None:
        self.low = low
        self.high = high
        self.coming = coming

    @property
    def bad(self) -> bool:
        """It holds NaN or positive infinity."""
        return not self.high < math.inf

    @property
    def sunk(self) -> bool:
        """It holds negative infinity and is no mask: those hold zeros beside it."""
        return self.low == -math.inf and self.high != 0.0

    @property
    def finite(self) -> bool:
        """All its values are finite."""
        return self.low > -math.inf and self.high < math.inf

    @property
    def magnitude(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


def look_at(tensor: Tensor) -> Look | None:
    """A tensor's extremes, None where it has no values or they cannot be read. Waits for no device."""
    try:
        with torch.no_grad():
            value = plain(tensor)
            if value is None or not value.numel() or in_graph_capture(value):
                return None
            if value.is_complex():
                value = torch.view_as_real(value.resolve_conj())
            if value.element_size() == 1:
                value = value.float()
            low, high = torch.aminmax(value)
            if value.is_cpu:
                return Look(float(low), float(high))
            return Look(coming=torch.stack((low, high)).to(_widest(value)))
    except Exception:
        # Inside a transform of torch.func, for instance, no value can be read. Whatever it is, a hook must not raise.
        return None


def bring_back(looks: Iterable[Look]) -> Callable[[], None]:
    """Start to bring what is on devices to the host, in one copy for each; what comes back waits until it is there."""
    groups: dict[torch.device, tuple[list[Look], list[Tensor]]] = {}
    for look in looks:
        if look.coming is not None:
            found, numbers = groups.setdefault(look.coming.device, ([], []))
            found.append(look)
            numbers.append(look.coming)
            look.coming = None
    coming = [(found, DeviceRows(torch.stack(numbers))) for found, numbers in groups.values()]

    def arrive() -> None:
        for found, rows in coming:
            for look, (low, high) in zip(found, rows.resolve().tolist(), strict=True):
                look.low, look.high = low, high

    return arrive


def _widest(tensor: Tensor) -> torch.dtype:
    # Some devices (MPS) have no float64, and no tensors of it that would overflow in float32.
    return torch.float32 if tensor.device.type == "mps" else torch.float64
