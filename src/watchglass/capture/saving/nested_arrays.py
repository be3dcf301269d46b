"""Arrays nested in what modules take and return, in any framework."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_log = logging.getLogger("watchglass")
#: How much of a nested value is examined: containers inside one another, and members of all of them together. Also
#: what ends the walk through a value that holds itself.
_MAX_DEPTH, _MAX_MEMBERS = 8, 4096
#: Classes of which something could not be read, and were reported.
_left_out: weakref.WeakSet[type] = weakref.WeakSet()


def leaves_in(value: Any, is_array: Callable[[object], bool]) -> Iterator[tuple[str, Any]]:
    """The leaves of ``value``, in order, each with its path, ``""``, ``"0"``, ``"logits"``.

    Leaves are arrays, other values that are no containers, and unreadable ones. Containers are tuples, lists, mappings
    and dataclasses. Named tuples and the outputs of Hugging Face's models count by the names of their fields. What
    cannot be looked into, since its class forbids it, is left out with one warning for each class.

    Args:
        value: Anything.
        is_array: Whether a value is an array.
    """
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    room = _MAX_MEMBERS
    while stack:
        path, item, depth = stack.pop()
        try:
            members = None if is_array(item) else _members(item)
            known = None if members is None else list(itertools.islice(members, room if depth < _MAX_DEPTH else 0))
        except Exception as error:
            leave_out(type(item), error)
            known = None
        if known is None:
            yield path, item
            continue
        room -= len(known)
        stack += [(f"{path}.{name}" if path else name, member, depth + 1) for name, member in reversed(known)]


def leave_out(kind: type, error: Exception) -> None:
    """Arrays in objects of a class are not recorded; the first time, a warning says so."""
    if kind not in _left_out:
        _left_out.add(kind)
        _log.warning(
            "watchglass: tensors in objects of class %s are not recorded: %s: %s; return them in a tuple, list, dict "
            "or dataclass, or hand them to watchglass.save_tensor",
            kind.__qualname__, type(error).__name__, error,
        )  # fmt: skip


def _members(item: Any) -> Iterable[tuple[str, Any]] | None:
    if isinstance(item, (tuple, list)):
        names = getattr(item, "_fields", None)
        return zip(names, item, strict=False) if names else ((str(index), child) for index, child in enumerate(item))
    if isinstance(item, Mapping):
        # A key may be any object; only texts and integers have a short text.
        return (
            (str(key) if isinstance(key, (str, int)) else str(index), child)
            for index, (key, child) in enumerate(item.items())
        )
    if hasattr(item, "__dataclass_fields__") and not isinstance(item, type):
        return ((name, getattr(item, name, None)) for name in item.__dataclass_fields__)
    return None
