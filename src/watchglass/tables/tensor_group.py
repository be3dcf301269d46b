"""The tensors of some rows: what is asked about them is worked out once, for steps come with the same ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.records import TensorInfo

#: Answers that are kept of a group; a rule may ask for something else at every step.
_MOST_REMEMBERED = 64


class Part(NamedTuple):
    """Some tensors of a group.

    Attributes:
        rows: Where they are in the group, intp[m].
        group: They themselves, in that order.
        is_whole: Whether they are all of them in the same order.
    """

    rows: npt.NDArray[np.intp]
    group: TensorGroup
    is_whole: bool


class TensorGroup:
    """Tensors in the order of the rows that have them. Made by :meth:`Catalog.group`; says nothing about values.

    Args:
        rows: Catalog rows by id, which must not change any more for these tensors.
        ids: Tensor ids, uint32[n].
    """

    def __init__(self, rows: Mapping[int, TensorInfo], ids: npt.NDArray[np.uint32]) -> None:
        self.ids = ids
        self._rows = rows
        self._infos: list[TensorInfo] | None = None
        self._remembered: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def infos(self) -> list[TensorInfo]:
        """The catalog row of each tensor; KeyError where there is none. Not to be changed."""
        if self._infos is None:
            rows = self._rows
            self._infos = [rows[i] for i in self.ids.tolist()]
        return self._infos

    @property
    def names(self) -> list[str]:
        """The name of each tensor. Not to be changed."""
        found: list[str] = self.remembered("names", lambda: [info.name for info in self.infos])
        return found

    def row(self, tensor_id: int) -> int | None:
        """Where a tensor is among these (the first place), or None."""
        # Backwards, so that the first of equal ids is what stays.
        table: dict[int, int] = self.remembered(
            "rows", lambda: {i: len(self) - 1 - row for row, i in enumerate(self.ids[::-1].tolist())}
        )
        return table.get(tensor_id)

    def part(self, key: Hashable, build: Callable[[], npt.NDArray[np.intp]]) -> Part:
        """Some of these tensors: the same object for the same ``key``, whose rows ``build`` gives once."""

        def made() -> Part:
            rows = build()
            is_whole = len(rows) == len(self) and bool((rows == np.arange(len(self))).all())
            return Part(rows, TensorGroup(self._rows, self.ids[rows]), is_whole)

        found: Part = self.remembered(("part", key), made)
        return found

    def remembered(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """What ``build`` gives, worked out once for ``key``."""
        try:
            return self._remembered[key]
        except KeyError:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = build()
            return found
