"""For how long in a row conditions have held, and since which step: a state of rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Streaks(dict[str, tuple[int, int]]):
    """By name of a condition that holds at present: how many times in a row it was seen to hold, and the first step.

    A rule declares it as ``state(Streaks)``, and gives the start to its finding: a fault began there, and not where it
    had lasted long enough to be reported::

        if self.flat.follow(view.mode_step, spread < self.limit) >= self.patience:
            yield self.finding(view, since=self.flat.since(), ...)

    A name that is not followed at a step, as of a tensor that is captured in turn, keeps its streak.
    """

    def follow(self, step: int, holds: object, name: str = "", *, covers: int = 1) -> int:
        """How many times in a row a condition has held, this step included: 0 if it does not hold now.

        Args:
            step: This step.
            holds: Whether it holds.
            name: Name of the condition.
            covers: :attr:`StepView.covers`, for streaks of steps. Whether it held at those before the first one at
                which it was seen to hold is not known.
        """
        if not holds:
            self.pop(name, None)
            return 0
        times, since = self.get(name, (0, step))
        self[name] = times + (covers if times else 1), since
        return self[name][0]

    def times(self, name: str = "") -> int:
        """How many times in a row a condition has held; 0 if it did not hold when it was last followed."""
        return self[name][0] if name in self else 0

    def since(self, *names: str) -> int | None:
        """The step from which on all of these conditions have held; None if one does not hold."""
        wanted = names or ("",)
        return max(self[name][1] for name in wanted) if self.keys() >= set(wanted) else None


def began(before: npt.NDArray[np.int64], step: int, holds: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The same for a column of conditions: steps from which on they have held, int64[n]; -1 where they do not.

    Args:
        before: What this returned at the step before, int64[n]; -1 for conditions that are new.
        step: This step.
        holds: Which of them hold now, bool[n].
    """
    return np.where(holds, np.where(before >= 0, before, step), -1)
