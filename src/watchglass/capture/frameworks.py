"""The contract of a framework, and the one table of known frameworks; the rest of capture names none of them.

A member writes a :class:`Framework` and a line of :data:`FRAMEWORKS`; docs/adapters.md writes a whole one.
"""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from watchglass.config import Collection, environment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watchglass.capture.hook import Hook
    from watchglass.record import Readback


class Entry(NamedTuple):
    """Where a framework is.

    Attributes:
        home: Module and name of its :class:`Framework`, ``"package.module:Class"``, imported at first use.
        discovers: Whether it finds the models of a process, so that ``watchglass run`` needs no change to the script.
        add: Else, what a script must add, as a clause.
    """

    home: str
    discovers: bool = False
    add: str = ""


#: Frameworks by import name. Each is listed below those that it is built on: if a model belongs to several, the lowest
#: of them owns its steps.
FRAMEWORKS = {
    "torch": Entry("watchglass.capture.pytorch:PyTorch", discovers=True),
    "xgboost": Entry(
        "watchglass.capture.xgboost:XGBoost",
        add="give callbacks=[watchglass.xgboost_callback()] to xgboost.train, xgboost.cv or the estimator",
    ),
}


class Numbers(NamedTuple):
    """The content of an array of a framework.

    Attributes:
        shape: Its shape.
        dtype: Name of its dtype.
        elements: Its elements in a dtype that NumPy has, or a readback of them where they are on a device.
        is_complex: Whether they are complex.
    """

    shape: tuple[int, ...]
    dtype: str
    elements: NDArray[Any] | Readback
    is_complex: bool


class Framework(ABC):
    """How models and arrays of one framework are known, watched and read.

    Made once in a process, without arguments, when the framework has been imported; holds no hook and no model.
    """

    #: Its import name.
    name: ClassVar[str]
    #: The default collections of its models; empty for those of any network.
    collections: ClassVar[tuple[Collection, ...]] = ()

    @abstractmethod
    def is_model(self, value: object) -> bool:
        """Whether this is a model of the framework, as a script gives it to ``watch``; must not raise."""

    @abstractmethod
    def attach(self, hook: Hook, model: Any = None) -> Any:
        """Watch a model through a hook from now on; may be called for each of several models.

        Returns:
            The callback that the script is to give to the framework where that takes one, else None.

        Args:
            hook: Gets all records; what is put into the framework is undone by ``hook.detach_with``.
            model: One that :meth:`is_model` accepts; None for every model that is trained.
        """

    def is_array(self, value: object) -> bool:
        """Whether this is an array of the framework that NumPy cannot read."""
        return False

    def read(self, array: Any) -> Numbers | None:
        """The content of an array, without a wait for a device; None where nothing may be read now.

        Raises:
            Exception: It holds no numbers that can be read.
        """
        raise NotImplementedError

    def crashed(self, trace: TracebackType | None) -> tuple[str, str]:
        """The module of a model that raised, and the figures of what it worked on, by a traceback; "" for none."""
        return "", ""

    def rank(self) -> int | None:
        """This process's rank in the group that trains, called during training; None where it trains alone."""
        return environment.group_rank()


def framework(name: str) -> Framework:
    """A framework of the table; imports its adapter.

    Raises:
        ImportError: The framework is not installed.
    """
    return _made(FRAMEWORKS[name].home)


def owner_of(model: object) -> Framework | None:
    """The framework that owns the steps of a model: of those that know it the outermost, None where none does."""
    return next((each for each in _imported() if each.is_model(model)), None)


def reader_of(array: object) -> Framework | None:
    """The framework that reads an array, None where none does."""
    if type(array).__module__ in ("builtins", "numpy"):
        return None  # no adapter is imported for these
    return next((each for each in _imported() if each.is_array(array)), None)


def attach(hook: Hook, owner: Framework, model: Any = None) -> Any:
    """Watch a model of ``owner``, or all of them for None; returns the result of :meth:`Framework.attach`."""
    hook.rank = owner.rank
    return owner.attach(hook, model)


def crashed(trace: TracebackType | None) -> tuple[str, str]:
    """:meth:`Framework.crashed` of the first framework that knows the module; of adapters in use only.

    Never raises: the process is ending by the exception of the script.
    """
    for name in reversed(FRAMEWORKS):
        if name in sys.modules and FRAMEWORKS[name].home.partition(":")[0] in sys.modules:
            with suppress(Exception):
                found = framework(name).crashed(trace)
                if any(found):
                    return found
    return "", ""


def _imported() -> Iterator[Framework]:
    """Outermost first. A framework that a process has not imported has made none of its objects."""
    return (framework(name) for name in reversed(FRAMEWORKS) if name in sys.modules)


@functools.cache
def _made(home: str) -> Framework:
    module, _, name = home.partition(":")
    made: Framework = getattr(import_module(module), name)()
    return made
