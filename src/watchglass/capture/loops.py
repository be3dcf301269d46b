"""The contract of who drives a training loop, and what a loop around another framework can say about the run."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from watchglass.capture.frameworks import FRAMEWORKS, Entry, member, usable
from watchglass.capture.port import Port
from watchglass.capture.profiling.windows import WindowProfiler
from watchglass.config import Collection, environment
from watchglass.errors import InvalidValueError


class Loop(ABC):
    """Reports to a port where steps begin and end, and what else the framework that drives the loop knows.

    Made once in a process, without arguments, when the framework has been imported; holds no port and no model.

    A loop that *drives* opens the steps: ``port.begin(mode)`` and ``port.end(step)``, or the clock of the port, which
    decides by forwards, backwards and updates. The loop of a framework below it goes on recording gradients, updates,
    outputs and facts into the open step, and opens none. A loop that *advises* opens no steps: it fills in
    ``port.advice``, names the mode of evaluations (``port.clock.evaluates_as``), settles the first step of a resumed
    run (``port.resumption.settle``), records logged metrics, and ends the run as its framework does.
    """

    #: Its import name.
    name: ClassVar[str]
    #: The default collections of its models; empty for those of any network.
    collections: ClassVar[tuple[Collection, ...]] = ()

    @abstractmethod
    def is_loop(self, value: object) -> bool:
        """Whether a script gives this to ``watch`` to have the loop watched, a model or a trainer; must not raise."""

    @abstractmethod
    def attach(self, port: Port, watched: Any = None) -> Any:
        """Watch a loop through a port from now on; may be called for each of several models.

        Returns:
            The callback that the script is to give to the framework where that takes one, else None.

        Args:
            port: Gets all records; what is put into the framework is undone by ``port.detach_with``.
            watched: What :meth:`is_loop` accepts; None for every model that is trained.
        """

    #: Whether a loop that drives collects the values of its steps itself; those below it watch what it does not run.
    collects: ClassVar[bool] = False

    def skips(self, module: Any, arguments: Any, optimized: Callable[[], bool]) -> bool:
        """Whether a call of a module of the framework below is to be ignored by the loop of that.

        Args:
            module: The module, called from outside any other.
            arguments: Its arguments.
            optimized: Returns whether an optimizer of the framework below has any of its parameters.
        """
        return False

    #: Names of further options of :meth:`callback`.
    options: ClassVar[tuple[str, ...]] = ()

    def callback(
        self, open_port: Callable[[], Port], close_port: Callable[[Port, str | None], None], **options: Any
    ) -> Any:
        """A callback of the framework that watches each training of the loop that a script gives it to.

        Args:
            open_port: Makes or finds the port when training begins, in the thread that trains.
            close_port: Called with that port when training has ended; a second argument is ``"failed"`` when an
                exception ended it, else None.
            **options: Those of :attr:`options`.

        Raises:
            InvalidValueError: The framework takes no callbacks.
        """
        raise InvalidValueError(f"{self.name} takes no callback; call watchglass.watch(model), or use watchglass run")

    def profiler(self, port: Port) -> WindowProfiler | None:
        """What profiles the operators of its steps, and of those of a loop around it; None for nothing."""
        return None

    def rank(self) -> int | None:
        """This process's rank in the group that trains, called during training; None where it trains alone."""
        return environment.group_rank()


def loop(name: str) -> Loop:
    """The loop of a framework of the table; imports its adapter.

    Raises:
        ImportError: The framework is not installed.
    """
    found: Loop = member(FRAMEWORKS[name].loop)
    return found


def loop_of(value: object, *, drives: bool = False) -> Loop | None:
    """The outermost loop that a script means by a value that it gives to ``watch``; None where there is none.

    Args:
        value: The value.
        drives: Whether only loops that drive count.
    """
    loops = (member(entry.loop) for entry in usable("loop") if entry.drives or not drives)
    return next((each for each in loops if each.is_loop(value)), None)


def skipped(module: Any, arguments: Any, optimized: Callable[[], bool]) -> bool:
    """:meth:`Loop.skips` of any loop that drives."""
    loops = (member(entry.loop) for entry in usable("loop") if entry.drives)
    return any(each.skips(module, arguments, optimized) for each in loops)


def attach(port: Port, outer: Loop, watched: Any = None) -> Any:
    """Watch a loop, or all of them for None; returns the result of :meth:`Loop.attach`.

    Loops below it, of imported frameworks, are attached first. An advising loop leaves the rank and the steps to them.
    """
    entry = FRAMEWORKS.get(outer.name, Entry())
    for inner in (loop(name) for name in entry.over if name in sys.modules):
        if not entry.drives or watched is None:
            attach(port, inner)
        elif inner.is_loop(watched):
            attach(port, inner, watched)
    if entry.drives:
        port.rank = outer.rank
    return outer.attach(port, watched)
