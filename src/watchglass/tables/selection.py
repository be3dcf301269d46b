"""Conditions that select tensors of a run: one record for rules, readers and tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.errors import InvalidValueError
from watchglass.records import ModuleKind, Role, TensorInfo


@dataclass(frozen=True)
class Selection:
    """Conditions on tensors, all of which must hold; the default selects every tensor. Hashable.

    Raises:
        InvalidValueError: The role is unknown, or the regular expression is invalid.
    """

    role: Role | str | None = None  #: What the tensor is, also by its word, ``"gradient"``.
    names: tuple[str, ...] = ()  #: One of these names; any if empty.
    module: str | None = None  #: Path of the module that owns it, or of one that contains that module.
    regex: str | None = None  #: The name contains a match of this regular expression (``re.search``).
    collection: str | None = None  #: This collection holds it, one of the user or a built-in one.
    module_kinds: tuple[ModuleKind, ...] = ()  #: Its module is of one of these kinds; any if empty.
    min_dims: int = 0  #: Least number of axes; 2 selects the weight matrices and kernels.

    def __post_init__(self) -> None:
        if self.role is not None and not isinstance(self.role, Role):
            try:
                object.__setattr__(self, "role", Role(self.role))
            except ValueError:
                known = ", ".join(item.value for item in Role)
                raise InvalidValueError(f"a role must be one of {known} but got {self.role!r}") from None
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise InvalidValueError(
                    f"a regex must be a regular expression but got {self.regex!r}: {error}"
                ) from None

    def matcher(self) -> Callable[[TensorInfo], bool]:
        """A function that returns whether a tensor is selected."""
        conditions: list[Callable[[TensorInfo], bool]] = []
        if self.role is not None:
            conditions.append(lambda row: row.role is self.role)
        if self.names:
            names = frozenset(self.names)
            conditions.append(lambda row: row.name in names)
        if self.module is not None:
            inside = f"{self.module}."
            conditions.append(lambda row: row.module == self.module or row.module.startswith(inside))
        if self.regex is not None:
            search = re.compile(self.regex).search
            conditions.append(lambda row: search(row.name) is not None)
        if self.collection is not None:
            collection = self.collection
            conditions.append(lambda row: _belongs(row, collection))
        if self.module_kinds:
            conditions.append(lambda row: row.module_kind in self.module_kinds)
        if self.min_dims:
            conditions.append(lambda row: len(row.shape) >= self.min_dims)
        return lambda row: all(holds(row) for holds in conditions)


#: Every tensor.
ALL = Selection()


def _belongs(row: TensorInfo, collection: str) -> bool:
    """Whether a collection holds a tensor: it was saved under it, or it is what a built-in one holds."""
    built_in = BUILT_IN_COLLECTIONS.get(collection)
    if collection in row.collections or built_in is None:
        return collection in row.collections
    if built_in.tags:
        # Tensors that are recorded at every step carry no tag; their names show the collection.
        return built_in.every_step and row.name.partition("/")[0] in built_in.tags
    return row.role in built_in.roles or (not built_in.roles and row.role is not Role.CUSTOM)
