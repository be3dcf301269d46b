"""The extremes of tensors: enough to see whether all values are finite, at once on the CPU, later on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from watchglass.capture.facts.first_bad import Look
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.saving.reduce import plain


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
        # Inside a transform of torch.func, for instance, no value can be read. A hook must never raise.
        return None


def bring_back(looks: Iterable[Look]) -> Callable[[], None]:
    """Start one copy to the host for each device; the returned function waits for all of them."""
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
