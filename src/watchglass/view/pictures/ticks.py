"""Ticks of axes: round numbers, and their texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from watchglass.view.pictures.records import Axis

#: Titles of axes that are units.
UNITS = ("ms", "s", "seconds", "GB", "%")
#: Steps between ticks, within a power of ten.
_STEPS = (1.0, 2.0, 5.0, 10.0)


def with_unit(title: str, axis: Axis) -> str:
    """The title of a picture with the unit of its vertical axis, whose title is not drawn: ``"Memory (GB)"``."""
    if axis.title not in UNITS:
        return title
    head, semicolon, rest = title.partition("; ")
    return f"{head} ({axis.title}){semicolon}{rest}"


def ticks(axis: Axis, low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Places and texts of at most about ``most`` ticks between two ends of an axis, ``low < high``."""
    if axis.logarithmic:
        return _powers(axis, low, high, most)
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in _STEPS if each * power >= rough * 0.999)
    if axis.whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(number * step, text(axis, number * step, step)) for number in range(first, last + 1)]


def _powers(axis: Axis, low: float, high: float, most: int) -> list[tuple[float, str]]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / most))

    def places(parts: Sequence[float]) -> list[float]:
        found = (part * 10.0**power for power in range(first, last + 1) if power % every == 0 for part in parts)
        return [place for place in found if low * 0.999 <= place <= high * 1.001]

    between = places((1.0, 2.0, 5.0))
    return [(place, text(axis, place, place)) for place in (between if len(between) <= most else places((1.0,)))]


def text(axis: Axis, number: float, step: float) -> str:
    """A number as a tick shows it, with the digits that a step between ticks needs."""
    if axis.percent:
        return f"{100 * number:.{max(0, -math.floor(math.log10(100 * step) + 1e-9))}f} %"
    if number == 0:
        return "0"
    size = abs(number)
    if 1e-3 <= size < 1e6:
        return f"{number:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"
    mantissa, _, power = f"{number:.2e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    raised = f"10{''.join(_RAISED[letter] for letter in str(int(power)))}"
    return raised if mantissa == "1" else f"{mantissa}·{raised}"


_RAISED = dict(zip("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True))
