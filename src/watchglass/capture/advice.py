"""What a loop around a framework knows about the run and the framework does not, and how such loops listen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from watchglass.capture.port import Port
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around
from watchglass.records import Role

_Made = TypeVar("_Made")

#: Series that are recorded anyhow: what a framework logs under these names is often a mean over several steps.
_RECORDED = frozenset(("loss", "accuracy", "learning_rate"))


def when_made(port: Port, kind: type[_Made], made: Callable[[_Made], None]) -> None:
    """Call ``made`` with each object of a class, or of a derived one, once it is constructed."""
    wrap(port, kind, "__init__", lambda self: None, lambda self, arguments: made(self))


def wrap(
    port: Port,
    kind: type[Any],
    name: str,
    begins: Callable[[Any], None],
    ended: Callable[[Any, Mapping[Any, Any]], None],
) -> None:
    """Observe a public method of a class until the port detaches.

    Args:
        port: Its guard runs the callbacks.
        kind: The class that defines the method.
        name: Name of the method.
        begins: Called with the object before the method.
        ended: Called with the object, and its arguments by position or name, after the method; also if it raised,
            unless that is the constructor.
    """
    original = vars(kind)[name]
    before, after = port.guard.shielded(begins), port.guard.shielded(ended)

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        before(args[0])
        return True

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if result is not RAISED or name != "__init__":
            after(args[0], {**dict(enumerate(args[1:])), **kwargs})

    replace(port, kind, name, around(original, begin, end))


def replace(port: Port, kind: type[Any], name: str, wrapped: Callable[..., Any]) -> None:
    """Put a wrapper of a method of a class in its place until the port detaches."""
    original = vars(kind)[name]
    setattr(kind, name, wrapped)

    def restore() -> None:
        if vars(kind).get(name) is wrapped:
            setattr(kind, name, original)

    port.detach_with(restore)


def record_logged(port: Port, metrics: Mapping[str, Any]) -> None:
    """Record numbers that a framework logs: with the step or evaluation that is still open, else with the next step.

    On the fast path a step is over with its update, so they belong to the next one; at the end of the run, to its last
    TRAIN step. A name of a series that is recorded anyhow gets the prefix ``logged/``.
    """
    evaluation = port.clock.evaluation
    records = port.records.carried if evaluation is None else evaluation.records
    for name, value in metrics.items():
        if isinstance(value, (int, float)):
            port.add_scalar(records, f"logged/{name}" if name in _RECORDED else name, float(value), Role.METRIC)
