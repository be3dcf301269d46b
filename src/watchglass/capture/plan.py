"""The capture plan: which tensors are kept at which steps."""

from __future__ import annotations

from collections.abc import Sequence

from watchglass.capture.budget import Budget
from watchglass.config import Collection
from watchglass.records import Mode, Role


class Plan:
    """Answers, for a step and a tensor, whether to capture it.

    Args:
        collections: What is kept.
        save_interval: Interval of collections without one of their own; None leaves it to the budget.
        overhead_budget: Share of the training's time that capture may cost.
    """

    def __init__(self, collections: Sequence[Collection], save_interval: int | None, overhead_budget: float) -> None:
        self.budget = Budget(overhead_budget, save_interval)
        self._collections = tuple(collections)
        self._members: dict[tuple[str, Role], tuple[int, ...]] = {}
        self._none = (False,) * len(self._collections)
        self._all = (True,) * len(self._collections)
        self._due = self._none
        #: Whether all collections follow the budget's interval without limits, which is asked at every step.
        self._uniform = all(
            (collection.save_interval, collection.start_step, collection.end_step) == (None, 0, None)
            for collection in collections
        )

    def due(self, mode: Mode, mode_step: int) -> bool:
        """Whether anything is to be captured at a step that opens now."""
        if mode is not Mode.TRAIN:
            return False
        self._due = self._at(mode_step)
        return any(self._due)

    def keeps(self, name: str, role: Role) -> bool:
        """Whether a tensor's statistics are kept at the step that opened last."""
        return any(self._due[index] for index in self._membership(name, role))

    def keeps_raw(self, name: str, role: Role) -> bool:
        """Whether the tensor itself is kept at the step that opened last."""
        return any(self._due[index] and self._collections[index].save_raw for index in self._membership(name, role))

    def wants(self, role: Role) -> bool:
        """Whether a collection that is due can hold tensors of a role, so that looking is worth it."""
        return any(
            due and (collection.include_regex or collection.selects("", role))
            for due, collection in zip(self._due, self._collections, strict=True)
        )

    def _at(self, mode_step: int) -> tuple[bool, ...]:
        chosen = self.budget.due(mode_step)
        if self._uniform:
            return self._all if chosen else self._none
        return tuple(
            collection.allows(mode_step)
            and (chosen if collection.save_interval is None else mode_step % collection.save_interval == 0)
            for collection in self._collections
        )

    def _membership(self, name: str, role: Role) -> tuple[int, ...]:
        key = (name, role)
        if key not in self._members:
            self._members[key] = tuple(
                index for index, collection in enumerate(self._collections) if collection.selects(name, role)
            )
        return self._members[key]
