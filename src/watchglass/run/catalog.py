"""The catalog of one worker: what its tensor ids mean, and quick selections over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.records import Role, TensorInfo

#: Ids above this are not looked up in a dense table, so that a damaged row cannot ask for gigabytes.
_DENSE_LIMIT = 1 << 22


class Catalog:
    """Rows of :class:`TensorInfo` by id and by name. A later row with the same id replaces the earlier one.

    Selections are cached until the next :meth:`add`, so that asking for "gradients of Linear layers" at every step
    costs one dictionary lookup. Not thread-safe; one owner adds, and others read a :meth:`snapshot`.
    """

    def __init__(self, rows: Iterable[TensorInfo] = ()) -> None:
        self._by_id: dict[int, TensorInfo] = {}
        self._by_name: dict[str, TensorInfo] = {}
        self._cache: dict[Any, Any] = {}
        self._snapshot: Catalog | None = None
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
        self._cache.clear()
        self._snapshot = None

    def snapshot(self) -> Catalog:
        """An independent catalog with today's rows; the same object until a row changes."""
        if self._snapshot is None:
            self._snapshot = Catalog(self._by_id.values())
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
        return f"Catalog({len(self)} tensors)"

    def get(self, tensor_id: int) -> TensorInfo | None:
        """The row of an id, or None."""
        return self._by_id.get(tensor_id)

    def by_name(self, name: str) -> TensorInfo | None:
        """The row of a tensor name, or None."""
        return self._by_name.get(name)

    @property
    def names(self) -> list[str]:
        """All names, in the order of their ids."""
        return [self._by_id[i].name for i in sorted(self._by_id)]

    def select(
        self,
        role: Role | None = None,
        *,
        module_types: Sequence[str] = (),
        name_regex: str | None = None,
        collection: str | None = None,
        min_dims: int = 0,
    ) -> list[TensorInfo]:
        """The rows that match every condition given, in the order of their ids. The list is the caller's.

        Args:
            role: Only this role.
            module_types: Only tensors of modules of one of these class names.
            name_regex: Only names in which this regular expression is found (``re.search``).
            collection: Only what this collection holds, one of the user or a built-in one.
            min_dims: Only tensors with at least so many axes; 2 leaves the weight matrices and kernels.
        """
        key = ("rows", role, tuple(module_types), name_regex, collection, min_dims)
        types = frozenset(module_types)
        return list(self._cached(key, lambda: self._matching(role, types, name_regex, collection, min_dims)))

    def ids(
        self,
        role: Role | None = None,
        *,
        module_types: Sequence[str] = (),
        name_regex: str | None = None,
        collection: str | None = None,
        min_dims: int = 0,
    ) -> npt.NDArray[np.uint32]:
        """Ids of :meth:`select`, ascending, as a uint32 array (read-only)."""
        key = ("ids", role, tuple(module_types), name_regex, collection, min_dims)

        def build() -> npt.NDArray[np.uint32]:
            rows = self.select(
                role, module_types=module_types, name_regex=name_regex, collection=collection, min_dims=min_dims
            )
            found = np.array([row.tensor_id for row in rows], dtype=np.uint32)
            found.flags.writeable = False
            return found

        result: npt.NDArray[np.uint32] = self._cached(key, build)
        return result

    def mask(
        self,
        ids: npt.NDArray[np.uint32],
        role: Role | None = None,
        *,
        module_types: Sequence[str] = (),
        name_regex: str | None = None,
        collection: str | None = None,
        min_dims: int = 0,
    ) -> npt.NDArray[np.bool_]:
        """Which of ``ids`` (uint32[n], any order, unknown ones allowed) :meth:`select` would return, as bool[n]."""
        key = ("table", role, tuple(module_types), name_regex, collection, min_dims)

        def build() -> npt.NDArray[np.bool_] | None:
            chosen = self.ids(
                role, module_types=module_types, name_regex=name_regex, collection=collection, min_dims=min_dims
            )
            top = max(self._by_id, default=-1)
            if top > _DENSE_LIMIT:
                return None
            table = np.zeros(top + 1, dtype=np.bool_)
            table[chosen] = True
            return table

        table: npt.NDArray[np.bool_] | None = self._cached(key, build)
        if table is None:
            chosen = self.ids(
                role, module_types=module_types, name_regex=name_regex, collection=collection, min_dims=min_dims
            )
            return np.isin(ids, chosen)
        inside = ids < len(table)
        result = np.zeros(len(ids), dtype=np.bool_)
        result[inside] = table[ids[inside]]
        return result

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

        table: dict[int, int] = self._cached(("owners",), build)
        return np.array([table.get(i, -1) for i in ids.tolist()], dtype=np.int64)

    def _matching(
        self,
        role: Role | None,
        module_types: frozenset[str],
        name_regex: str | None,
        collection: str | None,
        min_dims: int,
    ) -> list[TensorInfo]:
        pattern = re.compile(name_regex) if name_regex is not None else None
        return [
            row
            for _, row in sorted(self._by_id.items())
            if (role is None or row.role is role)
            and (not module_types or row.module_type in module_types)
            and (pattern is None or pattern.search(row.name) is not None)
            and (collection is None or _belongs(row, collection))
            and len(row.shape) >= min_dims
        ]

    def _cached(self, key: Any, build: Callable[[], Any]) -> Any:
        try:
            return self._cache[key]
        except KeyError:
            value = self._cache[key] = build()
            return value


def _belongs(row: TensorInfo, collection: str) -> bool:
    """Whether a collection holds a tensor: it was saved under it, or it is what a built-in one holds."""
    built_in = BUILT_IN_COLLECTIONS.get(collection)
    if collection in row.collections or built_in is None:
        return collection in row.collections
    if built_in.tags:
        # What is recorded at every step carries no tag, but the name.
        return built_in.every_step and row.name.partition("/")[0] in built_in.tags
    return row.role in built_in.roles or (not built_in.roles and row.role is not Role.CUSTOM)
