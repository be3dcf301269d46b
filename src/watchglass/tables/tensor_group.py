"""The tensors of some rows. Most steps have the same tensors, so each answer about them is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from watchglass.records import TensorInfo

_Found = TypeVar("_Found")


class Answers:
    """Answers that were worked out once, by key. Drops all of them where there are too many: a rule may use new keys
    at every step.

    Args:
        most: How many are kept.
    """  # noqa: D205

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[Hashable, Any] = {}

    def get(self, key: Hashable, build: Callable[[], _Found]) -> _Found:
        """The answer of ``key``, which ``build`` works out where it is not known."""
        try:
            known: _Found = self._found[key]
            return known
        except KeyError:
            if len(self._found) >= self._most:
                self._found.clear()
            found = self._found[key] = build()
            return found

    def clear(self) -> None:
        """Drops all answers."""
        self._found.clear()


class TensorSubset(NamedTuple):
    """Some tensors of a group."""

    rows: npt.NDArray[np.intp]  #: Their places in the group, intp[m].
    group: TensorGroup  #: These tensors, in that order.
    is_whole: bool  #: Whether they are all tensors of the group, in the same order.


class TensorGroup:
    """Tensors in the order of their rows, without values. Made by :meth:`Catalog.group`.

    Args:
        rows: Catalog rows by id. The rows of these tensors must not change any more.
        ids: Tensor ids, uint32[n].

    Attributes:
        answers: What was worked out about these tensors.
    """

    def __init__(self, rows: Mapping[int, TensorInfo], ids: npt.NDArray[np.uint32]) -> None:
        self.ids = ids
        self._rows = rows
        self._infos: list[TensorInfo] | None = None
        self.answers = Answers(64)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def infos(self) -> list[TensorInfo]:
        """The catalog row of each tensor; KeyError where there is none. Callers must not change the list."""
        if self._infos is None:
            rows = self._rows
            self._infos = [rows[i] for i in self.ids.tolist()]
        return self._infos

    @property
    def names(self) -> list[str]:
        """The name of each tensor. Callers must not change the list."""
        return self.answers.get("names", lambda: [info.name for info in self.infos])

    def row(self, tensor_id: int) -> int | None:
        """The first place of a tensor in the group, or None."""
        # Backwards, so that of equal ids the first one stays.
        table = self.answers.get(
            "rows", lambda: {i: len(self) - 1 - row for row, i in enumerate(self.ids[::-1].tolist())}
        )
        return table.get(tensor_id)

    def part(self, key: Hashable, build: Callable[[], npt.NDArray[np.intp]]) -> TensorSubset:
        """Some of these tensors, whose places ``build`` gives; the same object for the same ``key``."""

        def made() -> TensorSubset:
            rows = build()
            is_whole = len(rows) == len(self) and bool((rows == np.arange(len(self))).all())
            return TensorSubset(rows, TensorGroup(self._rows, self.ids[rows]), is_whole)

        return self.answers.get(("part", key), made)
