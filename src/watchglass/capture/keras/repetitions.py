"""How the functions of a model are called twice under each backend."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras

from watchglass.capture.compiled.changed_variables import ChangedVariables
from watchglass.capture.compiled.twin import Arguments, Repetition, equal_arrays
from watchglass.capture.frameworks import FRAMEWORKS, member
from watchglass.capture.keras.backends import TakenBatches


class StepRepetition(Repetition):
    """Twice the same batches, taken once."""

    @abstractmethod
    def observed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step of the model, which its twin is made from, with a look at each of its traces."""

    def making(self) -> AbstractContextManager[None]:
        """Inside, Keras makes the twin."""
        return nullcontext()

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Arguments]:
        """The batches that the twin has taken are those of the function."""
        taken = args[-1]
        again = taken.again() if isinstance(taken, TakenBatches) else taken
        return (args, kwargs), ((*args[:-1], again), kwargs)


class TensorFlowRepetition(StepRepetition, ChangedVariables):
    """State is in variables; batches are of an iterator that the functions read.

    Replicas run once, and functions with variables that Keras does not know of.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        self._tensorflow = sys.modules["tensorflow"]
        self._model: Callable[[], Any] = weakref.ref(model)
        super().__init__(member(FRAMEWORKS["tensorflow"].arrays), self._of_model)
        self.always = bool(model.jit_compile)

    def _of_model(self) -> list[Any]:
        model, held = self._model(), {}
        members = list(vars(model).values())
        optimizers = (each for each in members if isinstance(each, keras.optimizers.Optimizer))
        known = (*model.variables, *model.metrics_variables, *(one for each in optimizers for one in each.variables))
        for each in (*known, *members):
            variable = each.value if isinstance(each, keras.Variable) else each
            if isinstance(variable, self._tensorflow.Variable):
                held[id(variable)] = variable
        return list(held.values())

    def observed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step; each trace tells what it has."""

        @functools.wraps(step)
        def observed(*args: Any) -> Any:
            result = step(*args)
            self.runs_once |= self._tensorflow.distribute.has_strategy()
            self.traced(self._tensorflow.compat.v1.get_default_graph())
            return result

        return observed

    @contextmanager
    def making(self) -> Iterator[None]:
        """Functions that Keras compiles are traced ahead of their first call."""
        tensorflow: Any = self._tensorflow
        thread = threading.get_ident()
        original = tensorflow.function

        def function(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            return self._traced_ahead(made) if threading.get_ident() == thread else made

        tensorflow.function = function
        try:
            yield
        finally:
            tensorflow.function = original

    def _traced_ahead(self, function: Any) -> Callable[..., Any]:
        """The function; as it is first called, what its trace makes is known before it runs."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            tensorflow = self._tensorflow
            is_inner = not tensorflow.executing_eagerly() or tensorflow.distribute.has_strategy()
            if not is_inner and function.experimental_get_tracing_count() == 0:
                function.get_concrete_function(*args, **kwargs)
                self.initialized()
            return function(*args, **kwargs)

        return called

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Arguments]:
        """An iterator for each, of the same batches."""
        source = args[-1]
        if isinstance(source, self._tensorflow.distribute.DistributedIterator):
            self.runs_once = True
        if self.runs_once or not isinstance(source, self._tensorflow.data.Iterator):
            return super().arguments(args, kwargs)
        taken, error = [], None
        try:
            for batch in itertools.islice(source, self._model().steps_per_execution):
                taken.append(batch)  # noqa: PERF402  # those before an exception are kept
        except Exception as raised:  # of the script's data set: at the same place for both
            error = raised
        if not taken and error is None:
            return (args, kwargs), (args, kwargs)
        one, other = self._iterators(taken, source.element_spec, error)
        return ((*args[:-1], one), kwargs), ((*args[:-1], other), kwargs)

    def _iterators(self, taken: list[Any], spec: Any, error: Exception | None) -> tuple[Any, Any]:
        """Two that Keras's functions read as the one of the script, so that they need no further trace."""
        if error is None:
            try:
                return self._whole(taken, spec)
            except Exception:  # batches of a kind that no data set can be made of
                return taken, taken
        return _then_raises(taken, error), _then_raises(taken, error)

    def _whole(self, taken: list[Any], spec: Any) -> tuple[Any, Any]:
        tensorflow = self._tensorflow
        elements, data = [tensorflow.data.Dataset.from_tensors(each) for each in taken], tensorflow.data.Dataset
        whole = functools.reduce(data.concatenate, elements)

        def with_open_axes(*batch: Any) -> Any:
            structure = batch if len(batch) > 1 or isinstance(spec, tuple) else batch[0]
            return tensorflow.nest.map_structure(
                lambda each, known: tensorflow.compat.v1.placeholder_with_default(each, known.shape)
                if isinstance(each, tensorflow.Tensor)
                else each,
                structure, spec,
            )  # fmt: skip

        whole = whole.map(with_open_axes)
        return iter(whole), iter(whole)


class JaxRepetition(StepRepetition):
    """State is among the arguments, and donated: the twin gets copies. Functions with effects run once."""

    def __init__(self) -> None:
        self._jax, self._arrays = sys.modules["jax"], member(FRAMEWORKS["jax"].arrays)
        self._runs_once = False

    def observed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step; each trace tells whether it has effects, such as a print."""

        @functools.wraps(step)
        def observed(*args: Any) -> Any:
            jitted = self._jax.jit(lambda *given: step(*given), inline=True)
            self._runs_once |= bool(jitted.trace(*args).jaxpr.effects)
            return jitted(*args)  # makes use of that trace

        return observed

    def is_possible(self) -> bool:
        """Not with effects."""
        return not self._runs_once

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Arguments]:
        """A copy of the state for the twin."""
        _, for_itself = super().arguments(args, kwargs)
        state = self._jax.tree_util.tree_map(self._copied, args[:-1])
        return ((*state, args[-1]), kwargs), for_itself

    def _copied(self, leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, self._jax.Array) else leaf

    def are_equal(self, one: Any, other: Any) -> bool:
        """All logs, and the state after the call."""
        return equal_arrays(self._arrays, one, other)


def _then_raises(taken: list[Any], error: Exception) -> Iterator[Any]:
    yield from taken
    raise error


def repetition(backend: str, model: Any) -> StepRepetition | None:
    """How the functions of a model are called under a backend; None for one that compiles none."""
    if backend == "tensorflow":
        return TensorFlowRepetition(model)
    return JaxRepetition() if backend == "jax" else None
