"""Keras for the table of frameworks: the loop that its models drive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras

from watchglass.capture.keras.backends import backend
from watchglass.capture.keras.watching import KerasWatching
from watchglass.capture.loops import Loop
from watchglass.capture.port import Port

_watching: weakref.WeakKeyDictionary[Port, KerasWatching] = weakref.WeakKeyDictionary()


class KerasLoop(Loop):
    """``fit``, ``evaluate``, ``predict`` and their relatives, of a model or of all."""

    name = "keras"
    collects = True

    def is_loop(self, value: object) -> bool:
        """Whether this is a model."""
        return isinstance(value, keras.Model)

    def skips(self, module: Any, arguments: Any, optimized: Callable[[], bool]) -> bool:
        """Layers that are built, and models of Keras's own loop; what the script trains by PyTorch is for that."""
        used = backend()
        if used is None or not isinstance(module, keras.Layer):
            return False
        if not any(map(used.is_array, keras.tree.flatten(arguments))):
            return True
        driven = getattr(module, "compiled", False) or any(each.runs for each in _watching.values())
        return driven and not optimized()

    def attach(self, port: Port, watched: Any = None) -> None:
        """Watch a model, or each that is trained."""
        used = backend()
        if used is None:
            return
        if port not in _watching:
            _watching[port] = KerasWatching(port, used)
        _watching[port].watch(watched)
