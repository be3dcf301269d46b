"""When a loop of Python waits for the next batch of a ``tf.data.Dataset``, whichever framework it trains with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from watchglass.capture.port import Port
from watchglass.capture.step_phases import DATA, StepPhases
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around


class DatasetWaits:
    """Marks when an iterator of a data set is made, and when the loop asks it for a batch and gets that.

    The iterators have a class with a private name, so the class is that of what ``iter(dataset)`` returns.

    Args:
        port: Undoes it.
        phases: Gets the marks.
    """

    def __init__(self, port: Port, phases: StepPhases) -> None:
        self._port, self._phases, self._thread = port, phases, threading.get_ident()
        # The phase in which each of the calls that run now began.
        self._before: list[int] = []
        self._known: set[type] = set()
        self._wrap(tf.data.Dataset, "__iter__", self._made)

    def _wrap(self, owner: Any, name: str, after: Callable[[Any], None]) -> None:
        original = vars(owner)[name]

        def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            self._phases.begin(self._before.pop())
            if result is not RAISED:
                after(result)

        wrapped = around(original, self._begins, end, bypass=self._is_off)
        setattr(owner, name, wrapped)

        def restore() -> None:
            if vars(owner).get(name) is wrapped:
                setattr(owner, name, original)

        self._port.detach_with(restore)

    def _is_off(self) -> bool:
        # A thread of the script that loads ahead delays no step, and a graph that is built reads nothing yet.
        off = not self._port.guard.active or threading.get_ident() != self._thread
        return off or not tf.executing_eagerly()

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        self._before.append(self._phases.present)
        self._phases.begin(DATA)
        return True

    def _made(self, iterator: Any) -> None:
        kind = type(iterator)
        if kind not in self._known:
            self._known.add(kind)
            for name in ("__next__", "get_next", "get_next_as_optional"):
                if name in vars(kind):
                    self._wrap(kind, name, lambda batch: None)
