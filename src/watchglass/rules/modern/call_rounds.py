"""Rounds of the fact ``calls``: which calls a script makes between one update and the next. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from watchglass.records import facts

#: The names of all optimizers beyond the eighth end in this, so calls of different ones look the same.
_SHARED = "_more"


class Round(NamedTuple):
    """One order of calls."""

    calls: tuple[str, ...]  #: Names in their order, each as often as it came.
    times: int  #: How many rounds had this order.

    def stepped(self) -> list[str]:
        """Names of the optimizers that step in it, each once."""
        found = dict.fromkeys(call.removesuffix(".step") for call in self.calls if call.endswith(".step"))
        return [name for name in found if name.startswith("optimizer") and not name.endswith(_SHARED)]

    def clears(self, optimizer: str, modules: Sequence[str]) -> bool:
        """Whether gradients of this optimizer, or of one of these modules, are cleared in it."""
        clearing = [f"{name}.zero_grad" for name in (optimizer, *modules, f"module{_SHARED}")]
        return any(call.rpartition("/")[2] in clearing for call in self.calls)

    def unused(self) -> int:
        """How often gradients are cleared after a backward and before any step."""
        found, waiting = 0, False
        for call in self.calls:
            if call.endswith(".step") and call.startswith(("optimizer", "scaler")):
                waiting = False
            elif call.endswith(".zero_grad"):
                found, waiting = found + waiting, False
            elif call == "backward":
                waiting = True
        # A round without a step ends where its gradients are cleared.
        return found + (waiting and any(call.endswith(".zero_grad") for call in self.calls))

    def discards(self, optimizer: str, clearing: Sequence[str]) -> bool:
        """Whether gradients are cleared between the last backward and the first step of an optimizer after it.

        Args:
            optimizer: Name of the optimizer.
            clearing: The calls that clear its gradients.
        """
        step = f"{optimizer}.step"
        if step not in self.calls or f"{step}/backward" in self.calls:
            return False
        before = self.calls[: self.calls.index(step)]
        if "backward" not in before:
            return False
        since = before[len(before) - before[::-1].index("backward") :]
        return any(call in since for call in clearing)


def orders_of(fact: facts.Calls) -> list[Round]:
    """All orders."""
    return [Round(tuple(name for name, times in row.calls for _ in range(times)), row.times) for row in fact.orders]


def rounds_of(fact: facts.Calls) -> list[Round]:
    """The orders that have an update."""
    found = []
    for calls, times in orders_of(fact):
        # What comes before the loop is in the first round: it shows no habit.
        habit = calls[calls.index("backward") :] if "backward" in calls else calls
        if any(call.startswith("optimizer") and call.endswith(".step") for call in habit):
            found.append(Round(habit, times))
    return found
