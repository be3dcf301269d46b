"""How far a loss or a norm is from where it began: as a ratio where it has one, else in units of its spread.

A loss that is zero or below has no ratio: "twice as much" means nothing of a log-likelihood, of the loss of a policy or
of a critic, nor of one that has come down to nothing. What is measured in units of the spread of earlier values is the
same whatever constant is added to the loss, and whatever it is multiplied with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from watchglass.stats import median

#: Levels that may lie beyond the first value before that one counts: a rise may be in the first values already.
_RISEN = 4.0
#: Makes the median absolute deviation of a normal distribution its standard deviation.
_SIGMA = 1.4826

#: A rise or a fall of so many spreads is none by chance: a public monitor of six healthy language models saw at most
#: 4.5 robust deviations, and alarms at 8.
CERTAIN = 8.0


class Rise(NamedTuple):
    """How far a value is above where it began.

    Attributes:
        level: Where it began.
        now: Where it is.
        times: ``now / level``; None where the values have no ratio.
        spreads: Of values without ratio ``now - level`` in units of the spread of earlier values; 0 where these do not
            differ.
    """

    level: float
    now: float
    times: float | None
    spreads: float = 0.0

    def reaches(self, times: float, spreads: float) -> bool:
        """Whether it is so many times its level; of a value without ratio, so many spreads above it."""
        return self.times >= times if self.times is not None else self.spreads >= spreads

    def exceeds(self, times: float, spreads: float) -> bool:
        """As :meth:`reaches`, and more than that."""
        return self.times > times if self.times is not None else self.spreads > spreads

    @property
    def words(self) -> str:
        """``"41 times the 2.3 at the start"``, ``"25 times their spread above the -0.1 at the start"``."""
        if self.times is not None:
            return f"{self.times:.3g} times the {self.level:.3g} at the start"
        return f"{self.spreads:.3g} times the spread of earlier losses above the {self.level:.3g} at the start"


def level(first: Sequence[float], *, lowest: float) -> float:
    """Where a series began: the median of its first values, the lower one of two (no value between them was there).

    Where a series with a ratio rises among its first values already, the very first one.

    Args:
        first: The first few finite values, at least one.
        lowest: The least value so far.
    """
    middle = sorted(first)[(len(first) - 1) // 2]
    return float(first[0] if lowest > 0 and first[0] < middle / _RISEN else middle)


def spread(values: Sequence[float]) -> float:
    """Robust standard deviation of values, at least one."""
    middle = median(list(values))
    return _SIGMA * median([abs(value - middle) for value in values])


def rise(first: Sequence[float], now: float, *, lowest: float, before: Sequence[float] = ()) -> Rise:
    """How far ``now`` is above where a series began.

    Args:
        first: The first few finite values, at least one.
        now: A later value, or the median of some.
        lowest: The least value so far: above 0 where the series has a ratio.
        before: Later values before ``now``: where they differ more than the first ones, a rise is measured by them.
    """
    began = level(first, lowest=lowest)
    if lowest > 0:
        return Rise(began, now, now / began)
    unit = max(spread(first), spread(before) if len(before) else 0.0)
    return Rise(began, now, None, (now - began) / unit if unit > 0 else 0.0)


def progress(first: Sequence[float], now: float, *, lowest: float) -> float:
    """How far a series has fallen: share of its level that is gone, 0 for none and 1 for all, negative where it rose.

    Of a series without a ratio 1 where it has certainly fallen, else 0.
    """
    began = level(first, lowest=lowest)
    if lowest > 0:
        return (began - now) / began
    unit = spread(first)
    return 1.0 if unit > 0 and (began - now) / unit >= CERTAIN else 0.0
