"""Values that a script saves, and modes that it names."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from watchglass.capture.arrays import arrays_of, number_of
from watchglass.capture.planning.plan import Plan
from watchglass.capture.saving.pending_records import PendingRecords
from watchglass.capture.saving.saving import Item, Saving
from watchglass.capture.saving.tensor_ids import TensorIds
from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.records import SCALARS, Role, TensorInfo

_log = logging.getLogger("watchglass")


class SavedValues:
    """Records the numbers and tensors that a script, or an adapter, saves.

    Args:
        plan: What is kept of them.
        ids: Their numbers.
        pending: The records that they belong to.
        saving: Saves tensors of any framework.
    """

    def __init__(self, plan: Plan, ids: TensorIds, pending: PendingRecords, saving: Saving) -> None:
        self._plan, self._ids, self._pending, self._saving = plan, ids, pending, saving
        # Names of values that are not numbers: each is reported once.
        self._refused: set[str] = set()

    def save_scalar(self, name: str, value: Any, collection: str | None) -> None:
        """Record one number; see ``Hook.save_scalar``."""
        number = self._read(name, value, number_of, "save_scalar needs a number")
        if number is None:
            return
        role, tags = _role_of(collection, Role.METRIC), tuple(filter(None, (collection,)))
        info = functools.partial(TensorInfo, 0, name, role, dtype="float64", collections=tags)
        row = self._ids.of(name, info), 1.0, number
        self._pending.saved().saved.setdefault(SCALARS, []).append(row)

    def save_tensor(self, name: str, value: Any, collection: str | None) -> None:
        """Record statistics of a tensor, and what else the plan keeps of it; see ``Hook.save_tensor``."""
        role, tags = _role_of(collection, Role.CUSTOM), tuple(filter(None, (collection,)))
        keep = self._plan.keep_saved(name, tags, role)
        if keep is None:
            return
        values = self._read(
            name, value, lambda value: arrays_of(value).values(value), "save_tensor needs an array of numbers"
        )
        if values is not None:
            trainable = True if role in (Role.WEIGHT, Role.BIAS) else None
            # Apart from what is captured, which is dropped where a step turns out not to be captured.
            item = Item(values, name, tags=tags, trainable=trainable)
            self._saving.save_by_hand(self._pending.saved(), role, item, keep)

    def _read(self, name: str, value: Any, read: Callable[[Any], Any], needs: str) -> Any:
        try:
            return read(value)
        except Exception:
            if name not in self._refused:
                self._refused.add(name)
                _log.warning("watchglass: %r is not recorded: %s but got %.80r", name, needs, value)
            return None


def _role_of(collection: str | None, otherwise: Role) -> Role:
    """The role of a tensor that a script files under a collection: that of a built-in one."""
    built_in = BUILT_IN_COLLECTIONS.get(collection or "")
    return built_in.roles[0] if built_in is not None and len(built_in.roles) == 1 else otherwise
