"""Training, test and prediction functions of models: each call is a step, or several, and those due run a twin."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from watchglass.capture.compiled.collecting import Values
from watchglass.capture.compiled.twin import Twin
from watchglass.capture.keras.backends import Backend, TakenBatches
from watchglass.capture.keras.collecting import StepValues
from watchglass.capture.keras.models import KerasModel
from watchglass.capture.keras.repetitions import StepRepetition
from watchglass.capture.port import Port
from watchglass.records import Mode


class WatchedFunction:
    """What a model calls for each batch, in the place of the function that Keras has made.

    Args:
        execute: Called with it and the arguments of each call; calls the function or its twin.
        model: The model.
        about: What is known of it.
        mode: What its calls are.
        plain: The function that Keras has made.
        twin: Makes the twin of it, for the model.
    """

    def __init__(
        self,
        execute: Callable[[WatchedFunction, tuple[Any, ...]], Any],
        model: Any,
        about: KerasModel,
        mode: Mode,
        plain: Callable[..., Any],
        twin: Callable[[Any], FunctionTwin],
    ) -> None:
        self.plain, self.about, self.mode = plain, about, mode
        self._execute, self._make_twin = execute, twin
        self._model = weakref.ref(model)
        self._twin: FunctionTwin | None = None

    def __call__(self, *args: Any) -> Any:
        """One execution. What the function raises, this raises."""
        return self._execute(self, args)

    @property
    def model(self) -> Any:
        """The model."""
        return self._model()

    @property
    def twin(self) -> FunctionTwin:
        """Its twin, made when it is first needed."""
        return self._twin or self.make_twin()

    def make_twin(self) -> FunctionTwin:
        """Make its twin now."""
        self._twin = self._make_twin(self.model)
        return self._twin


class FunctionTwin:
    """The function once more, made by Keras from a step that collects its values.

    Args:
        values: Collects.
        function: The function.
        collecting: Inside, the step of the model collects.
        backend: Its backend.
        repetition: How both are called; None if nothing is traced before it runs.
        port: Gets the fact that it cannot be traced.
        name: Its name.
    """

    def __init__(
        self, values: StepValues, function: Callable[..., Any], collecting: Callable[[], AbstractContextManager[None]],
        backend: Backend, repetition: StepRepetition | None, port: Port, name: str,
    ) -> None:  # fmt: skip
        self._values, self._function, self._collecting = values, function, collecting
        self._backend, self._compiled = backend, repetition is not None
        self._twin = Twin(port, name, lambda: None, self._run, repetition)

    @property
    def values(self) -> StepValues:
        """Collects the values."""
        return self._values

    def __call__(
        self, plain: Callable[..., Any], args: tuple[Any, ...], taken: TakenBatches | None
    ) -> tuple[Any, Values]:
        """The result, and the values; none where the twin cannot be traced, so that the function itself ran.

        Args:
            plain: The function itself.
            args: What both take: the state under some backends, and data.
            taken: The data, if they are taken as batches.
        """
        if self._twin.usable:
            try:
                return self._twin(plain, *args)
            except UntracedError:
                args = args if taken is None else (*args[:-1], taken.again())
        return plain(*args), {}

    def give_up(self, error: Exception) -> None:
        """The function itself runs from now on, and one warning says why."""
        self._twin.give_up(error)

    def _run(self, *args: Any) -> tuple[Any, Values]:
        traces = self._values.traces
        try:
            with self._collecting():
                result = self._function(*args)
        except Exception as error:
            traced = self._values.traces > traces
            if not (self._compiled and traced) or isinstance(error, StopIteration) or self._backend.is_execution(error):
                raise
            # Nothing has run: only the trace has failed.
            self._twin.give_up(error)
            raise UntracedError from None
        if self._values.failure is not None:
            self._twin.give_up(self._values.failure)
        found, values = self._backend.without_values(result)
        if values is None:
            self._twin.give_up(KeyError("what the step collected is not in its logs"))
        return found, values or {}


class UntracedError(Exception):
    """A twin could not be traced, so that nothing has run."""
