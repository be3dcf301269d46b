"""Hooks on single modules, which are not saved, copied or sent to other processes.

A module is pickled and copied with the tables that hold its hooks, each an ``OrderedDict``. While a module has a hook
of watchglass, ``copyreg`` (the standard library's registry of how objects are pickled and deep-copied) has an entry for
this type, which pickles a table without the entries of watchglass. So ``torch.save``, ``pickle``, ``copy.deepcopy`` and
multiprocessing give the same bytes for a watched module as for an unwatched one. ``copy.copy`` copies references to the
tables. For it, the result of ``Module.__getstate__`` is cleaned in the same way.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from watchglass.capture.guard import harmless
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around, with_another

_Table = OrderedDict[int, Any]

#: Tables with our entries, by identity, and the keys of these entries.
_tables: dict[int, tuple[weakref.ref[_Table], set[int]]] = {}
_undo: list[Callable[[], None]] = []
#: Replacement for a pickled hook that cannot be omitted: see :class:`Unsaved`.
STAND_IN = (getattr, (contextlib.nullcontext(), "__exit__"))


class Switch:
    """A hook that is put on and taken off again and again.

    To register it each time would take ten times as long: its entry in the table of hooks is kept.

    Args:
        register: Puts it on.
    """

    def __init__(self, register: Callable[[], RemovableHandle]) -> None:
        self._register = register
        self._handle: RemovableHandle | None = None
        self._hook: Any = None
        self._on = False

    def __bool__(self) -> bool:
        """Whether it is on."""
        return self._on

    def __call__(self, on: bool) -> None:
        """Put it on, or take it off, if it is not so already."""
        if on is self._on:
            return
        self._on = on
        handle = self._handle
        table = handle.hooks_dict_ref() if handle is not None else None
        if table is None or handle is None:
            self._handle = self._register()
        elif on:
            table[handle.id] = self._hook
        else:
            self._hook = table.pop(handle.id, None)


def observe_calls(
    entered: Callable[[nn.Module, Any], None], returned: Callable[[nn.Module, Any, Any], None], *, always: bool = False
) -> Callable[[], None]:
    """Observe the calls of all modules; returns a function that undoes it.

    Args:
        entered: Called with a module and its arguments, before it runs.
        returned: Called with a module, its arguments and its result.
        always: Whether it is called after an exception of the module, too.
    """
    handles = register_module_forward_pre_hook(entered), register_module_forward_hook(returned, always_call=always)

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


class Exchange:
    """A hook whose callback is replaced by another one for a while, in the same place among other hooks.

    Args:
        handle: The handle of the hook.
        usual: Its callback.
        other: The other one, with the same arguments.
    """

    def __init__(self, handle: RemovableHandle, usual: Callable[..., Any], other: Callable[..., Any]) -> None:
        self._handle, self._usual, self._other = handle, usual, other

    def __call__(self, on: bool) -> None:
        """Put the other one there, or the usual one; nothing if the hook was removed."""
        table = self._handle.hooks_dict_ref()
        if table is not None and self._handle.id in table:
            table[self._handle.id] = self._other if on else self._usual

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()


class Unsaved(functools.partial[Any]):
    """A hook on a module, for picklers with a registry of their own: pickled, it becomes one that does nothing.

    The replacement is ``contextlib.nullcontext().__exit__``, which takes any three arguments and returns None, so what
    was saved loads where watchglass is not installed.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return STAND_IN


def unsaved(handle: RemovableHandle) -> Callable[[], None]:
    """Keep the hook of this handle out of copies of its module; returns a function that removes the hook."""
    references = (handle.hooks_dict_ref, *handle.extra_dict_ref)
    tables = [table for reference in references if (table := reference()) is not None and handle.id in table]
    entries = []
    for table in tables:
        key = id(table)
        known = _tables.get(key)
        if known is None or known[0]() is not table:
            known = _tables[key] = (weakref.ref(table, functools.partial(harmless(_forget), key)), set())
        known[1].add(handle.id)
        entries.append((key, known))
    if not _undo:
        _install()

    def remove() -> None:
        handle.remove()
        for key, known in entries:
            known[1].discard(handle.id)
            if not known[1] and _tables.get(key) is known:
                del _tables[key]
        while _undo and not _tables:
            _undo.pop()()

    return remove


@contextlib.contextmanager
def taken_off(root: nn.Module) -> Iterator[None]:
    """Without our hooks on a module and all below it; they come back in their places and under their numbers."""
    tables = [table for module in root.modules() for table in vars(module).values() if type(table) is OrderedDict]
    taken = [(table, table.copy(), keys) for table in tables if (keys := _keys(table))]
    for table, _, keys in taken:
        for key in keys:
            table.pop(key, None)
    try:
        yield
    finally:
        for table, before, _ in taken:
            after = before | {key: hook for key, hook in table.items() if key not in before}
            table.clear()
            table.update(after)


def _install() -> None:
    before = copyreg.dispatch_table.get(OrderedDict)
    reduce = with_another(before or operator.methodcaller("__reduce_ex__", 2), _without_ours)
    copyreg.pickle(OrderedDict, reduce)
    # Not in the oldest versions of PyTorch.
    state = vars(nn.Module).get("__getstate__")
    wrapper = around(state, _begin, _end) if state is not None else None
    if wrapper is not None:
        nn.Module.__getstate__ = wrapper  # type: ignore[method-assign]

    def undo() -> None:
        # Another package may have replaced ours since: then ours stays, and only passes calls on.
        if copyreg.dispatch_table.get(OrderedDict) is reduce:
            copyreg.dispatch_table.pop(OrderedDict)
            if before is not None:
                copyreg.pickle(OrderedDict, before)
        if wrapper is not None and nn.Module.__getstate__ is wrapper:
            nn.Module.__getstate__ = state  # type: ignore[method-assign,assignment]

    _undo.append(undo)


def _forget(key: int, reference: weakref.ref[_Table]) -> None:
    known = _tables.get(key)
    if known is not None and known[0] is reference:
        del _tables[key]


def _keys(table: _Table) -> set[int] | None:
    """Keys of our entries in a table, None where it has none."""
    known = _tables.get(id(table))
    return known[1] if known is not None and known[0]() is table else None


def _without_ours(table: _Table) -> _Table:
    keys = _keys(table)
    return table if keys is None else OrderedDict((key, hook) for key, hook in table.items() if key not in keys)


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(_tables)


def _end(args: tuple[Any, ...], kwargs: dict[str, Any], state: Any) -> None:
    if state is RAISED:
        return
    for name, value in state.items():
        if type(value) is OrderedDict:
            state[name] = _without_ours(value)
