"""Tensors nested in the arguments and results of modules."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_log = logging.getLogger("watchglass")
#: How much of a nested value is examined: containers inside one another, and members of all of them together. Also
#: what ends the walk through a value that holds itself.
_MAX_DEPTH, _MAX_MEMBERS = 8, 4096


def tensors_in(value: Any, limit: int = 64) -> Iterator[tuple[str, Tensor]]:
    """Tensors nested in tuples, lists, mappings and dataclasses, each with its path, ``""``, ``"0"``, ``"logits"``.

    Named tuples and the outputs of Hugging Face's models count by the names of their fields. What cannot be looked into
    or read, since its class forbids it, is left out with one warning for each class.

    Args:
        value: Anything.
        limit: Most tensors that are given.
    """
    if isinstance(value, Tensor):
        if limit and _is_readable(value):
            yield "", value
        return
    found = ((path, leaf) for path, leaf in leaves_in(value) if isinstance(leaf, Tensor) and _is_readable(leaf))
    yield from itertools.islice(found, limit)


def leaves_in(value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of ``value``, in order, each with its path: values that are no containers, or unreadable ones."""
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    room = _MAX_MEMBERS
    while stack:
        path, item, depth = stack.pop()
        try:
            members = _members(item)
            known = None if members is None else list(itertools.islice(members, room if depth < _MAX_DEPTH else 0))
        except Exception as error:
            _leave_out(type(item), error)
            known = None
        if known is None:
            yield path, item
            continue
        room -= len(known)
        stack += [(f"{path}.{name}" if path else name, member, depth + 1) for name, member in reversed(known)]


def _members(item: Any) -> Iterable[tuple[str, Any]] | None:
    if isinstance(item, Tensor):
        return None
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


#: Classes of tensors and containers that were met, other than PyTorch's own: whether they can be read.
_classes: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_readable(tensor: Tensor) -> bool:
    kind = type(tensor)
    if kind is Tensor or kind is nn.Parameter:
        return True
    known = _classes.get(kind)
    if known is None:
        try:
            with torch.no_grad():
                tensor.detach().dim(), tensor.is_floating_point(), tensor.grad_fn
            known = _classes[kind] = True
        except Exception as error:
            known = _leave_out(kind, error)
    return known


def _leave_out(kind: type, error: Exception) -> bool:
    if _classes.get(kind) is not False:
        _classes[kind] = False
        _log.warning(
            "watchglass: tensors in objects of class %s are not recorded: %s: %s; return them in a tuple, list, dict "
            "or dataclass, or hand them to watchglass.save_tensor",
            kind.__qualname__, type(error).__name__, error,
        )  # fmt: skip
    return False
