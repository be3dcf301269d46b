"""Rounds of the fact ``calls``: which calls a script makes between one update and the next. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from watchglass.records import Fact

#: The names of all optimizers beyond the eighth end in this, so calls of different ones look the same.
_SHARED = "_more"


class Round(NamedTuple):
    """One order of calls.

    Attributes:
        calls: Names in their order, each as often as it came.
        times: How many rounds had this order.
    """

    calls: tuple[str, ...]
    times: int

    def stepped(self) -> list[str]:
        """Names of the optimizers that step in it, each once."""
        found = dict.fromkeys(call.removesuffix(".step") for call in self.calls if call.endswith(".step"))
        return [name for name in found if name.startswith("optimizer") and not name.endswith(_SHARED)]

    def clears(self, optimizer: str) -> bool:
        """Whether gradients of this optimizer, or of a module, are cleared in it."""
        own = f"{optimizer}.zero_grad"
        return any(
            call.rpartition("/")[2] == own or (call.endswith(".zero_grad") and call.startswith("module"))
            for call in self.calls
        )

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


def rounds_of(fact: Fact) -> list[Round]:
    """The orders of a ``calls`` fact that have an update."""
    found = []
    rows = fact.data.get("orders")
    for row in rows if isinstance(rows, list) else ():
        calls = tuple(name for name, times in row["calls"] for _ in range(times))
        # What comes before the loop is in the first round: it shows no habit.
        calls = calls[calls.index("backward") :] if "backward" in calls else calls
        if any(call.startswith("optimizer") and call.endswith(".step") for call in calls):
            found.append(Round(calls, row["times"]))
    return found


def objects_of(fact: Fact, kind: str) -> dict[str, Mapping[str, Any]]:
    """The objects of a kind that were called: ``"optimizer"``, ``"scheduler"``, ``"module"``; by name."""
    objects = fact.data.get("objects")
    every = objects.items() if isinstance(objects, dict) else ()
    return {name: row for name, row in every if name.partition("_")[0] == kind}
