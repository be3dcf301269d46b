"""The catalog of one worker: the meaning of its tensor ids, and quick selections over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from watchglass.records import TensorInfo, count
from watchglass.tables.selection import ALL, Selection
from watchglass.tables.tensor_group import Answers, TensorGroup

#: Ids above this are not looked up in a dense table, so that a damaged row cannot ask for gigabytes.
_DENSE_LIMIT = 1 << 22


class Catalog:
    """Rows of :class:`TensorInfo` by id and by name. A later row with the same id replaces the earlier one.

    Selections are cached until the next :meth:`add`: a rule that selects "gradients of Linear layers" at every step
    costs one dictionary lookup. One owner adds rows. Any number of threads may read a :meth:`snapshot`.
    """

    def __init__(self, rows: Iterable[TensorInfo] = ()) -> None:
        self._by_id: dict[int, TensorInfo] = {}
        self._by_name: dict[str, TensorInfo] = {}
        self.answers = Answers(256)  #: What was worked out about the rows; empty again once a row changes.
        self._snapshot: Catalog | None = None
        self._is_snapshot = False
        for row in rows:
            self.add(row)

    def add(self, info: TensorInfo) -> None:
        """Adds one row, or replaces the row of the same id (an alias). An equal row changes nothing."""
        old = self._by_id.get(info.tensor_id)
        if old == info:
            return
        if old is not None and self._by_name.get(old.name) is old:
            del self._by_name[old.name]
        self._by_id[info.tensor_id] = info
        self._by_name[info.name] = info
        self.answers.clear()
        self._snapshot = None

    def snapshot(self) -> Catalog:
        """A catalog with the present rows, which stay; the same object until a row changes. A snapshot gives itself."""
        if self._is_snapshot:
            return self
        if self._snapshot is None:
            self._snapshot = Catalog(self._by_id.values())
            self._snapshot._is_snapshot = True
        return self._snapshot

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self._by_id.values())

    def __contains__(self, tensor_id: int) -> bool:
        return tensor_id in self._by_id

    def __getitem__(self, tensor_id: int) -> TensorInfo:
        """The row of an id; KeyError when there is none."""
        return self._by_id[tensor_id]

    def __repr__(self) -> str:
        return f"Catalog({count(len(self), 'tensor')})"

    def get(self, tensor_id: int) -> TensorInfo | None:
        """The row of an id, or None."""
        return self._by_id.get(tensor_id)

    @property
    def models(self) -> frozenset[int]:
        """Numbers of the models that tensors belong to; empty where no row names a model."""
        return self.answers.get(
            ("models",), lambda: frozenset(row.model for row in self._by_id.values() if row.model is not None)
        )

    def by_name(self, name: str) -> TensorInfo | None:
        """The row of a tensor name, or None."""
        return self._by_name.get(name)

    @property
    def names(self) -> list[str]:
        """All names, in the order of their ids."""
        return [self._by_id[i].name for i in sorted(self._by_id)]

    def select(self, selection: Selection = ALL) -> list[TensorInfo]:
        """The rows that a selection takes, in the order of their ids. The caller may change the list."""

        def build() -> list[TensorInfo]:
            matches = selection.matcher()
            return [row for _, row in sorted(self._by_id.items()) if matches(row)]

        return list(self.answers.get(("rows", selection), build))

    def ids(self, selection: Selection = ALL) -> npt.NDArray[np.uint32]:
        """Ids of :meth:`select`, ascending, as a uint32 array (read-only)."""

        def build() -> npt.NDArray[np.uint32]:
            found = np.array([row.tensor_id for row in self.select(selection)], dtype=np.uint32)
            found.flags.writeable = False
            return found

        return self.answers.get(("ids", selection), build)

    def mask(self, ids: npt.NDArray[np.uint32], selection: Selection = ALL) -> npt.NDArray[np.bool_]:
        """Which of ``ids`` (uint32[n], any order, unknown ones allowed) :meth:`select` would return, as bool[n]."""

        def build() -> npt.NDArray[np.bool_] | None:
            top = max(self._by_id, default=-1)
            if top > _DENSE_LIMIT:
                return None
            table = np.zeros(top + 1, dtype=np.bool_)
            table[self.ids(selection)] = True
            return table

        table = self.answers.get(("table", selection), build)
        if table is None:
            return np.isin(ids, self.ids(selection))
        inside = ids < len(table)
        result = np.zeros(len(ids), dtype=np.bool_)
        result[inside] = table[ids[inside]]
        return result

    def group(self, ids: npt.NDArray[np.uint32]) -> TensorGroup:
        """The tensors with these ids (uint32[n], any order): the same object for the same ids until a row changes."""

        def build() -> TensorGroup:
            # The ids may be a slice of a whole flush, and would keep all of it in memory.
            return TensorGroup(self._by_id, ids.copy())

        return self.answers.get(("group", ids.tobytes()), build)

    def knows(self, ids: npt.NDArray[np.uint32]) -> bool:
        """Whether there is a row for each of ``ids`` (uint32[n])."""
        return self.group(ids).answers.get("known", lambda: bool(self.mask(ids).all()))

    def owners(self, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """The id of the parameter that each gradient, update or optimizer state belongs to, int64[n]; -1 for none.

        By name: ``update/fc1.weight`` belongs to ``fc1.weight``.
        """

        def build() -> dict[int, int]:
            found: dict[int, int] = {}
            for row in self._by_id.values():
                owner = self._by_name.get(row.name.rpartition("/")[2])
                if owner is not None and owner is not row:
                    found[row.tensor_id] = owner.tensor_id
            return found

        table = self.answers.get(("owners",), build)
        return np.array([table.get(i, -1) for i in ids.tolist()], dtype=np.int64)
