"""The modules that run at present in a captured forward, the innermost last."""

from __future__ import annotations

from torch import nn

from watchglass.capture.module_places import Place
from watchglass.capture.pytorch.events import ModuleCall


class RunningModules:
    """Keeps the calls of modules that have begun and not returned, for a part that listens to both."""

    def __init__(self) -> None:
        self._stack: list[tuple[nn.Module, Place]] = []

    def entered(self, entry: ModuleCall) -> None:
        """A module is about to run."""
        self._stack.append((entry.module, entry.place))

    def returned(self, call: ModuleCall) -> None:
        """It has returned. Calls above it were left by an exception that the script caught."""
        depth = next((at for at in range(len(self._stack) - 1, -1, -1) if self._stack[at][0] is call.module), None)
        if depth is not None:
            del self._stack[depth:]

    def clear(self) -> None:
        """A forward begins or has ended."""
        self._stack.clear()

    @property
    def innermost(self) -> Place | None:
        """The place of the innermost; None outside of all."""
        return self._stack[-1][1] if self._stack else None
