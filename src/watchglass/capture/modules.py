"""The contract of who knows the structure of models: names, kinds, parameters."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from watchglass.capture.frameworks import imported, member
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

    def crashed(self, trace: TracebackType | None) -> tuple[str, str]:
        """The module of a model that raised, and the figures of what it worked on, by a traceback; "" for none."""
        return "", ""


def modules_over(inner: str, model: object) -> Modules | None:
    """The framework that stands on another one and names the modules of a model in its place; None for none.

    Args:
        inner: Import name of the other one.
        model: The model.
    """
    outer = (member(entry.modules) for entry in imported("modules") if inner in entry.over)
    return next((each for each in outer if each.is_model(model)), None)


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
