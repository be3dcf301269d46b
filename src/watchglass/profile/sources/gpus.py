"""What sources of GPUs share: which GPUs the run may use, and a number of each or NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchglass.profile.metrics import Metric, MetricReading

_NAN = float("nan")


class Gpus:
    """The GPUs that the run may use, and calls of the library of their vendor about each.

    Args:
        handles: What the library calls each GPU, by the name of its instance in metrics.
        error: What calls of the library raise.
        is_unsupported: Whether such an error says only that a GPU has no such number.
    """

    def __init__(
        self, handles: Mapping[str, Any], error: type[Exception], is_unsupported: Callable[[Exception], bool]
    ) -> None:
        self.handles = handles
        self._error, self._is_unsupported = error, is_unsupported

    def __call__(self, ask: Callable[[Any], Any]) -> list[float]:
        """A number of each GPU; NaN where it does not support it.

        Raises:
            Exception: The library does not answer for any of them.
        """
        found, refused = self._answers(ask)
        if refused is not None and all(each != each for each in found):
            try:
                raise refused
            finally:
                del refused  # its traceback would hold this frame, and so itself
        return found

    def readings(self, asked: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> list[MetricReading]:
        """A number of each GPU or NaN, for each metric. One that may not be asked for leaves the others.

        Args:
            asked: By name of the metric its unit, and a call that gives the number of a GPU.

        Raises:
            Exception: No number is known, and not for lack of support: the library itself does not answer.
        """
        answers = {name: self._answers(ask) for name, (_, ask) in asked.items()}
        refused = [error for _, error in answers.values() if error is not None]
        if refused and all(number != number for numbers, _ in answers.values() for number in numbers):
            try:
                raise refused[0]
            finally:
                del refused, answers  # as above
        instances = tuple(self.handles)
        return [
            MetricReading(Metric(name, unit, instances, exact=unit == "bytes"), answers[name][0])
            for name, (unit, _) in asked.items()
        ]

    def _answers(self, ask: Callable[[Any], Any]) -> tuple[list[float], Exception | None]:
        """A number of each GPU or NaN, and the last error that does not say that a GPU does not support it."""
        found, refused = [], None
        for handle in self.handles.values():
            try:
                found.append(float(ask(handle)))
            except self._error as error:
                found.append(_NAN)
                if not self._is_unsupported(error):
                    refused = error.with_traceback(None)
        return found, refused


def visible(gpus: Sequence[Any], named: str | None, uuids: Callable[[Any], Sequence[str]]) -> list[Any]:
    """The GPUs that a variable such as ``CUDA_VISIBLE_DEVICES`` names, in its order; all where it is not set.

    Args:
        gpus: All GPUs, in the order of the numbers in the variable.
        named: Numbers or beginnings of UUIDs between commas. The first that names no GPU ends the list, as in CUDA and
            HIP. None if the variable is not set.
        uuids: The UUIDs by which a GPU may be named.
    """
    if named is None:
        return list(gpus)
    found: list[Any] = []
    for name in (each.strip() for each in named.split(",")):
        if name.isdecimal():
            chosen = [*gpus[int(name) : int(name) + 1]]
        else:
            chosen = [gpu for gpu in gpus if name and any(each.lower().startswith(name.lower()) for each in uuids(gpu))]
        if not chosen:
            break
        found += [gpu for gpu in chosen if gpu not in found]
    return found
