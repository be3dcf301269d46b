"""Whether values of a weight look like a fresh initialisation: pretrained ones do not. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from watchglass.records import ModuleKind


def initialization_of(
    shape: Sequence[int], kind: ModuleKind, size: int, least: float, most: float, std: float, tolerance: float
) -> str:
    """The initialisation that the values of a weight look like; "" for none, and for fewer than 64 values.

    A uniform one is exact: the values fill its range to the edges. Of a normal one the spread and the range fit.

    Args:
        shape: Shape of the weight, with two or more axes.
        kind: Kind of its module.
        size: How many values were examined.
        least: The least of them.
        most: The greatest of them.
        std: Their standard deviation.
        tolerance: Relative difference of a standard deviation that fits.
    """
    if size < 64 or std <= 0:
        return ""
    fan_in, fan_out = math.prod(shape[1:]), shape[0] * math.prod(shape[2:])
    tolerance = max(tolerance, 2 / math.sqrt(size))
    edge = max(-least, most)
    # A uniform distribution: the range is full on both sides, and its spread is a root of three smaller.
    if abs(edge / std / math.sqrt(3) - 1) < tolerance and min(-least, most) > edge * (1 - max(0.02, 16 / size)):
        hidden = shape[0] // 4, shape[0] // 3, shape[0], shape[1]
        bounds = {
            "PyTorch's default, uniform": 1 / fan_in, "Xavier uniform": 6 / (fan_in + fan_out),
            "Kaiming uniform": 6 / fan_in, "Kaiming uniform of the outputs": 6 / fan_out,
            "LeCun uniform": 3 / fan_in,
        } | (
            {f"PyTorch's default, uniform, {h} units": 1 / h for h in hidden if h}
            if kind is ModuleKind.RECURRENT else {}
        )  # fmt: skip
        for name, square in bounds.items():
            bound = math.sqrt(square)
            if bound * (1 - max(0.01, 16 / size)) < edge <= bound * 1.0001:
                return name
        return ""
    reach = edge / std
    expected = math.sqrt(2 * math.log(2 * size))
    if abs(reach / expected - 1) > 0.3:
        return ""
    spreads = {
        "Kaiming normal": 2 / fan_in, "Kaiming normal of the outputs": 2 / fan_out,
        "Xavier normal": 2 / (fan_in + fan_out), "LeCun normal": 1 / fan_in, "normal, 0.02": 0.0004,
    }  # fmt: skip
    spreads |= {"normal, 1": 1.0} if kind is ModuleKind.EMBEDDING else {}
    return next((name for name, square in spreads.items() if abs(std / math.sqrt(square) - 1) < tolerance), "")
