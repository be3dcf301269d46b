"""Tensors nested in the arguments and results of modules."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.saving import nested_arrays


def tensors_in(value: Any, limit: int = 64) -> Iterator[tuple[str, Tensor]]:
    """Tensors nested in tuples, lists, mappings and dataclasses, each with its path, ``""``, ``"0"``, ``"logits"``.

    What cannot be read, since its class forbids it, is left out with one warning for each class.

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
    """The leaves of ``value``; see :func:`watchglass.capture.saving.nested_arrays.leaves_in`."""
    return nested_arrays.leaves_in(value, _is_tensor)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


#: Classes of tensors that were met, other than PyTorch's own: whether they can be read.
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
            nested_arrays.leave_out(kind, error)
            known = _classes[kind] = False
    return known
