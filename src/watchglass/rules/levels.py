"""The change of a loss or a norm since its start: as a ratio if all values are positive, else in units of its spread.

A loss that is zero or below has no meaningful ratio. Examples are a log-likelihood, the loss of a policy or of a
critic, and a loss that has fallen to zero. A change in units of the spread of earlier values does not depend on a
constant that is added to the loss, nor on its scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from watchglass.stats import median

#: Ratio of the first values to the very first one from which the series rose within its first values.
_RISEN = 4.0
#: Ratio of the standard deviation to the median absolute deviation of a normal distribution.
_SIGMA = 1.4826

#: A rise or fall of this many spreads is not random: a public monitor of six healthy language models saw at most 4.5
#: robust deviations, and alarms at 8.
CERTAIN = 8.0
#: Smallest spread of the logarithm of a loss: that of a very quiet one would make every step a jump.
_QUIET = 0.02


class Rise(NamedTuple):
    """The rise of a value above its start."""

    level: float  #: The start.
    now: float  #: The current value.
    times: float | None  #: ``now / level``; None for values without a ratio.
    #: For values without a ratio, ``now - level`` in units of the spread of earlier values; 0 if their spread is 0.
    spreads: float = 0.0

    def reaches(self, times: float, spreads: float) -> bool:
        """Whether it is at least ``times`` its level; without a ratio, ``spreads`` spreads above it."""
        return self.times >= times if self.times is not None else self.spreads >= spreads

    def exceeds(self, times: float, spreads: float) -> bool:
        """Whether it is more than that, see :meth:`reaches`."""
        return self.times > times if self.times is not None else self.spreads > spreads

    @property
    def evidence(self) -> dict[str, float]:
        """The numbers of :attr:`words`."""
        beyond = {"times": self.times} if self.times is not None else {"spreads": self.spreads}
        return {"at_start": self.level, "now": self.now, **beyond}

    @property
    def words(self) -> str:
        """``"41 times the 2.3 at the start"``, ``"25 times their spread above the -0.1 at the start"``."""
        if self.times is not None:
            return f"{self.times:.3g} times the {self.level:.3g} at the start"
        return f"{self.spreads:.3g} times the spread of earlier losses above the {self.level:.3g} at the start"


def level(first: Sequence[float], *, lowest: float) -> float:
    """The start of a series: the lower median of its first values.

    For a series with a ratio that rises within its first values, the very first value.

    Args:
        first: The first few finite values, at least one.
        lowest: The lowest value so far.
    """
    middle = sorted(first)[(len(first) - 1) // 2]
    return float(first[0] if lowest > 0 and first[0] < middle / _RISEN else middle)


def spread(values: Sequence[float]) -> float:
    """Robust standard deviation of values, at least one."""
    middle = median(list(values))
    return _SIGMA * median([abs(value - middle) for value in values])


def highest(before: Sequence[float], lowest: float, deviations: float, jump: float) -> float:
    """The largest loss that is no jump above the losses before it.

    Args:
        before: These losses, at least one, finite.
        lowest: The lowest loss so far. Above 0 logarithms are compared, else the losses themselves.
        deviations: Robust deviations above the median from which on it is a jump.
        jump: Least ratio of a jump to the median, for losses above 0.

    Returns:
        Infinity for losses at or below 0 whose spread is 0.
    """
    if lowest > 0:
        logs = np.log(before).tolist()
        high = median(logs) + deviations * max(spread(logs), _QUIET)
        return max(math.exp(min(high, 700.0)), jump * median(list(before)))
    apart = spread(before)
    return median(list(before)) + deviations * apart if apart > 0 else math.inf


def rise(first: Sequence[float], now: float, *, lowest: float, before: Sequence[float] = ()) -> Rise:
    """The rise of ``now`` above the start of a series.

    Args:
        first: The first few finite values, at least one.
        now: A later value, or the median of some.
        lowest: The lowest value so far; the series has a ratio if it is above 0.
        before: Later values before ``now``; their spread counts if it is larger than that of the first values.
    """
    began = level(first, lowest=lowest)
    if lowest > 0:
        return Rise(began, now, now / began)
    unit = max(spread(first), spread(before) if len(before) else 0.0)
    return Rise(began, now, None, (now - began) / unit if unit > 0 else 0.0)


def progress(first: Sequence[float], now: float, *, lowest: float) -> float:
    """The decrease of a series as a share of its start: 0 for none, 1 for all, negative for a rise.

    For a series without a ratio, 1 if it has certainly fallen, else 0.
    """
    began = level(first, lowest=lowest)
    if lowest > 0:
        return (began - now) / began
    unit = spread(first)
    return 1.0 if unit > 0 and (began - now) / unit >= CERTAIN else 0.0
