"""The numbers of tensors and series, and their catalog rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from watchglass.records import TensorInfo


class TensorIds:
    """Gives each tensor and series of a process a number. Several keys of a tensor lead to one number.

    Args:
        add: Records a catalog row.
    """

    def __init__(self, add: Callable[[TensorInfo], None]) -> None:
        self._add = add
        self._by_key: dict[Any, int] = {}
        self._by_name: dict[str, int] = {}
        #: The id of a key, None if it is unknown.
        self.known: Callable[[Any], int | None] = self._by_key.get

    def of(self, key: Any, make: Callable[[], TensorInfo]) -> int:
        """Id of the tensor known by ``key``; ``make`` builds its catalog row (id 0) the first time."""
        found = self._by_key.get(key)
        if found is None:
            info = make()
            found = self._by_name.get(info.name)
            if found is None:
                found = self._by_name[info.name] = len(self._by_name) + 1
                self._add(dataclasses.replace(info, tensor_id=found))
            self._by_key[key] = found
        return found
