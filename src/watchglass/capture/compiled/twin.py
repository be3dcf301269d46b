"""A compiled function and its twin, the same function traced a second time, which also returns collected values."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from watchglass.capture.arrays import Arrays
from watchglass.capture.compiled.collecting import Values
from watchglass.capture.port import Port
from watchglass.capture.saving.nested_arrays import leaves_in
from watchglass.records import facts

_log = logging.getLogger("watchglass")

#: Captured calls at which a twin and its function are compared. The first one shows little: the state of an optimizer
#: is zero.
_COMPARED = 4

#: Arguments of a call, those without names and those with.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Repetition(ABC):
    """How a function is called twice with the same arguments: first its twin, then itself."""

    #: Whether both run at each captured call: XLA fuses a whole function, and may round otherwise at some calls alone.
    always: bool = False

    @abstractmethod
    def is_possible(self) -> bool:
        """Whether the function does nothing that counts twice, such as to print; asked again once it was traced."""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Arguments]:
        """Arguments for the twin and for the function, neither of which uses up those of the other."""
        return (args, kwargs), (args, kwargs)

    def state(self) -> Any:
        """What the function changes in place, as it is now."""
        return ()

    def restore(self, state: Any) -> None:  # noqa: B027  # nothing is changed in place
        """Change that back."""

    @abstractmethod
    def are_equal(self, one: Any, other: Any) -> bool:
        """Whether two results with the states after them are equal, bit for bit; waits for them."""


class Twin:
    """Runs the twin of one compiled function. For the training thread.

    The twin is called in place of the function, at steps that are due. If it cannot be traced, the function itself
    runs, then and from now on.

    A compiler may fuse operations in another way where more of their results are wanted, and then rounds otherwise. So
    at the first captured calls both run, and the training goes on with what the function itself has made. If the two
    differ once, in a single bit, or XLA compiles the whole function, both run at each captured call. Of a function that
    cannot be called twice, only the twin runs.

    Args:
        port: Gets the fact that it cannot be traced.
        name: Name of the function, in the warning.
        trace: Called with the arguments ahead of each call; traces the twin if that is needed for them, and changes
            nothing. Whatever it raises ends the use of the twin.
        run: Called with the arguments; returns the result of the function, and the values.
        repetition: How both are called; None if they cannot differ.
    """

    def __init__(
        self, port: Port, name: str, trace: Callable[..., object], run: Callable[..., tuple[Any, Values]],
        repetition: Repetition | None = None,
    ) -> None:  # fmt: skip
        self._port, self._name, self._trace, self._run = port, name, trace, run
        self.usable = True  #: Whether it was always traced so far.
        self._equal = 0  # how often both were equal; -1 once they were not
        self._repetition = repetition

    def ready(self, *args: Any, **kwargs: Any) -> bool:
        """Whether it can be called with these arguments; the first time, that compiles it."""
        if not self.usable:
            return False
        try:
            self._trace(*args, **kwargs)
        except Exception as error:
            self.give_up(error)
        return self.usable

    def give_up(self, error: Exception) -> None:
        """It cannot be traced: never use it again, and say so once."""
        self.usable = False
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        _log.warning(
            "watchglass: tensors of %s are not captured, its loss is: tracing it a second time raised %s",
            self._name, reason,
        )  # fmt: skip
        self._port.records.current().add_fact(facts.NotCapturable((self._name,)), reason)

    def __call__(self, plain: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Values]:
        """The result of the function, and the values. What the function raises, this raises.

        Args:
            plain: The function itself.
            args: The arguments of both.
            kwargs: Those by name.
        """
        repetition = self._repetition
        enough = self._equal >= _COMPARED and not (repetition is not None and repetition.always)
        if repetition is None or enough or not repetition.is_possible():
            return self._run(*args, **kwargs)
        guarded = self._port.guard.call  # may return None
        prepared = guarded(_prepared, repetition, args, kwargs)
        if prepared is None:
            return plain(*args, **kwargs), Values()
        (for_twin, for_itself), before = prepared
        raised = False
        try:
            other, values = self._run(*for_twin[0], **for_twin[1])
        except Exception:
            if self.usable and not repetition.is_possible():
                raise
            other, values, raised = None, Values(), True  # the function raises it to the script
        if not (raised or (self.usable and repetition.is_possible())):
            return other, values
        by_twin = guarded(repetition.state)
        with self._port.guard.suspended():
            repetition.restore(before)
        result = plain(*for_itself[0], **for_itself[1])
        if self._equal >= 0 and not (raised or repetition.always):
            equal = guarded(repetition.are_equal, (other, by_twin), (result, guarded(repetition.state)))
            self._equal = self._equal + 1 if equal else -1
        return result, values


def _prepared(
    repetition: Repetition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Arguments, Arguments], Any]:
    return repetition.arguments(args, kwargs), repetition.state()


def equal_arrays(arrays: Arrays, one: Any, other: Any) -> bool:
    """Whether the arrays in two equal structures are equal, bit for bit; those that cannot be read are not compared."""
    pairs = zip(leaves_in(one, arrays.is_array), leaves_in(other, arrays.is_array), strict=True)
    return all(_bits(arrays, first) == _bits(arrays, second) for (_, first), (_, second) in pairs)


def _bits(arrays: Arrays, leaf: Any) -> bytes:
    if not arrays.is_array(leaf):
        return b""
    try:
        return arrays.take(arrays.values(leaf)).received().tobytes()
    except ValueError:  # it holds no numbers, or other processes have parts of it
        return b""
