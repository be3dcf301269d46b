"""The contract of who knows the structure of models: names, kinds, calls, parameters."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from watchglass.capture.frameworks import imported, member, usable
from watchglass.capture.module_places import ParameterPlace, Place


class Modules(ABC):
    """Reads the structure of the models of one framework. Made once in a process, without arguments; holds no model."""

    @abstractmethod
    def is_model(self, value: object) -> bool:
        """Whether this is a model of the framework; must not raise."""

    @abstractmethod
    def modules(self, model: Any) -> Iterable[tuple[Any, Place]]:
        """The modules of a model with their paths, kinds and order; a wrapper is none."""

    @abstractmethod
    def parameters(self, model: Any) -> Iterable[tuple[Any, ParameterPlace]]:
        """The parameters of a model with their names, each once."""

    def gradient(self, parameter: Any) -> Any:
        """The gradient that the framework keeps with a parameter; None where there is none."""
        return None

    def observe(
        self, model: Any, entered: Callable[[Any, Any], None], returned: Callable[[Any, Any, Any], None]
    ) -> Callable[[], None]:
        """Observe the calls of a model's modules; without hook points, none.

        Args:
            model: The model.
            entered: Called with a module and its positional arguments, before it runs.
            returned: Called with a module, these, and what it returns. Both are guarded, and change nothing.

        Returns:
            What undoes it, and leaves the modules as they were.
        """
        return lambda: None

    def crashed(self, trace: TracebackType | None) -> tuple[str, str]:
        """The module of a model that raised, and the figures of what it worked on, by a traceback; "" for none."""
        return "", ""


def modules_of(model: object, over: str = "") -> Modules | None:
    """The member that knows the modules of a model, the outermost framework first; None if none does.

    Args:
        model: The model.
        over: Import name of a framework: only those that stand on it are asked.
    """
    known = (member(entry.modules) for entry in usable("modules") if not over or over in entry.over)
    return next((each for each in known if each.is_model(model)), None)


def crashed(trace: TracebackType | None) -> tuple[str, str]:
    """:meth:`Modules.crashed` of the first framework that knows the module; of adapters in use only.

    Never raises: the process is ending by the exception of the script.
    """
    for entry in imported("modules"):
        if entry.modules.partition(":")[0] in sys.modules:
            with suppress(Exception):
                found: tuple[str, str] = member(entry.modules).crashed(trace)
                if any(found):
                    return found
    return "", ""
