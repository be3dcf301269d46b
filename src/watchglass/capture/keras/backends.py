"""Differences between the backends of Keras: arguments and results of training functions, and tracing."""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import keras

from watchglass.capture.compiled.collecting import Collected, Collector, Values
from watchglass.capture.compiled.program import TracedProgram
from watchglass.capture.frameworks import FRAMEWORKS, member

if TYPE_CHECKING:
    from watchglass.capture.jax.arrays import JaxArrays

#: Key of the collected values in the logs of a twin.
_KEY = "watchglass"


class Backend(ABC):
    """How the functions of a model are traced and called under one backend."""

    #: Its name.
    name: str

    @abstractmethod
    def scope(self) -> object:
        """What is traced now; values of another scope cannot be returned from this one."""

    def replica(self) -> int | None:
        """The number of the replica that is traced now; None where there are none, and between them."""
        return None

    @abstractmethod
    def is_execution(self, error: Exception) -> bool:
        """Whether an exception came from a function that ran, not from tracing or compiling it."""

    @abstractmethod
    def value_now(self, variable: Any) -> Any:
        """The array that a variable holds now; an array itself."""

    def value_after(self, variable: Any) -> Any:
        """The array that a variable holds after an update."""
        return self.value_now(variable)

    def copied_bytes(self, variable: Any) -> int:
        """Bytes that :meth:`value_now` takes."""
        return 0

    def is_array(self, value: Any) -> bool:
        """Whether this is an array with values, now or when what is traced runs."""
        return bool(keras.ops.is_tensor(value))

    def kept(self, array: Any) -> Any:
        """What is kept of an array to the end of the step."""
        return array

    def number(self, value: Any) -> Any:
        """A number of the logs, as it may be kept for later."""
        return value

    def carrying(self, collecting: Collector, enter: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Inside, values that are collected in transformations of the backend get out of them."""
        return nullcontext()

    def traced(self, step: Callable[..., tuple[Any, Values]], args: tuple[Any, ...]) -> tuple[Any, Values, Any]:
        """What a step returns, the values that it collects, and the program that is traced; None where it runs."""
        return (*step(*args), None)

    def read(
        self, program: Any, values: Values, known: Mapping[str, Collected], parameters: Sequence[tuple[Any, str]],
        model: int,
    ) -> Callable[[Values], TracedProgram]:  # fmt: skip
        """What reads a program, when the values of a step are there.

        Args:
            program: The program.
            values: What its trace has collected.
            known: What each of these is.
            parameters: The variables that it trains, with their names.
            model: Number of the model.

        Raises:
            NotImplementedError: Nothing is traced under this backend.
        """
        raise NotImplementedError

    def owned(self) -> AbstractContextManager[None]:
        """Inside, arrays are read that a twin has returned, so that the script has none of them."""
        return nullcontext()

    def logs(self, result: Any) -> Any:
        """The logs in the result of a training or test function."""
        return result

    def with_values(self, result: Any, values: dict[str, Any]) -> Any:
        """What a step returned, with values; it must return logs."""
        return {**result, _KEY: values}

    def without_values(self, result: Any) -> tuple[Any, dict[str, Any] | None]:
        """What a function returned as the script gets it, and the values; None if it has none."""
        values = result.pop(_KEY, None)
        return result, values

    #: Whether the backend compiles a function that also returns values to the same numbers.
    compiles_alike = True

    def reads_data(self, args: tuple[Any, ...]) -> bool:
        """Whether a function that is called with these takes its batches where Python does not see it."""
        return False

    def unfinished(self, logs: Mapping[str, Any]) -> Any:
        """One of the logs, as they are computed after the call; None where they are there as it returns."""
        return None

    #: Whether samples are counted as batches are taken, since no metric can be read between calls.
    counts_batches = False

    def count(self, metric: Any) -> Any:
        """The weights that a mean has counted so far, as an array; None where that cannot be read."""
        return None

    def rows(self, data: Any) -> int | None:
        """Samples of each batch of data that the backend itself reads; None where that is not known or not so."""
        return None

    def taken(self, data: Any) -> TakenBatches | None:
        """What a function takes batches from by Python's ``next``; None for what the backend itself reads."""
        return None if isinstance(data, list) else TakenBatches(data)


class TensorFlow(Backend):
    """Functions are traced into graphs; state is in variables."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._tensorflow = sys.modules["tensorflow"]
        self._read = self._tensorflow.raw_ops.ReadVariableOp
        self._iterators = self._tensorflow.data.Iterator, self._tensorflow.distribute.DistributedIterator
        # The latest iterator, and samples of each of its batches.
        self._rows: tuple[Callable[[], Any], int | None] = (lambda: self, None)

    def scope(self) -> object:
        """The graph that is built, or none, and the replica that it is built for."""
        return self._graph(), self.replica()

    def _graph(self) -> object:
        tensorflow = self._tensorflow
        return None if tensorflow.executing_eagerly() else tensorflow.compat.v1.get_default_graph()

    def replica(self) -> int | None:
        """That of a strategy that runs several."""
        distribute = self._tensorflow.distribute
        context = distribute.get_replica_context() if distribute.has_strategy() else None
        # Its number is a constant of the graph.
        number = None if context is None else self._tensorflow.get_static_value(context.replica_id_in_sync_group)
        return None if number is None else int(number)

    def traced(self, step: Callable[..., tuple[Any, Values]], args: tuple[Any, ...]) -> tuple[Any, Values, Any]:
        """With the graph that is built."""
        return (*step(*args), self._graph())

    def read(
        self, program: Any, values: Values, known: Mapping[str, Collected], parameters: Sequence[tuple[Any, str]],
        model: int,
    ) -> Callable[[Values], TracedProgram]:  # fmt: skip
        """By the definition of the graph."""
        from watchglass.capture.tensorflow.graph import TracedGraph

        held = [(variable.value, name) for variable, name in parameters]
        return TracedGraph(program, values, known, held, model).read

    def value_now(self, variable: Any) -> Any:
        """Read by an operation: the variable itself would be read later."""
        return self._tensorflow.convert_to_tensor(variable.value if isinstance(variable, keras.Variable) else variable)

    def is_execution(self, error: Exception) -> bool:
        """Errors of kernels have their own classes."""
        return isinstance(error, self._tensorflow.errors.OpError)

    def reads_data(self, args: tuple[Any, ...]) -> bool:
        """From iterators of data sets."""
        return isinstance(args[-1], self._iterators)

    def count(self, metric: Any) -> Any:
        """Its variable as it is now: the next update makes another value. A float where that waits for no device."""
        variable = metric.count.value
        value = self._read(resource=variable.handle, dtype=variable.dtype)
        return float(value) if "CPU" in value.device else value

    def rows(self, data: Any) -> int | None:
        """As the shapes of a data set say, where all its batches are equally large."""
        held, rows = self._rows
        if held() is data:
            return rows
        if not isinstance(data, self._tensorflow.data.Iterator):
            return None
        spec = data.element_spec
        first = keras.tree.flatten(spec[0] if isinstance(spec, tuple) else spec)[0]
        rows = first.shape[0] if getattr(first, "shape", None) else None
        self._rows = weakref.ref(data), rows
        return rows

    def taken(self, data: Any) -> TakenBatches | None:
        """None for the iterators of a data set."""
        return None if isinstance(data, self._iterators) else TakenBatches(data)


class Jax(Backend):
    """Functions take the state, which is donated, and return the next one; gradients are those of functions."""

    name = "jax"
    counts_batches = True

    def __init__(self) -> None:
        self._jax = sys.modules["jax"]
        try:
            from jax.extend.core import get_opaque_trace_state as state
        except ImportError:  # before JAX 0.10 it was there for Flax
            from jax.core import get_opaque_trace_state

            state = functools.partial(get_opaque_trace_state, convention="flax")
        self._state = state

    def scope(self) -> object:
        """The trace."""
        return self._state()

    def traced(self, step: Callable[..., tuple[Any, Values]], args: tuple[Any, ...]) -> tuple[Any, Values, Any]:
        """With the jaxpr of the step, which is a function inside that of Keras, and what it returns."""
        jax = self._jax
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(args)):
            return (*step(*args), None)
        inner = jax.jit(step)
        found = inner.trace(*args)
        return (*inner(*args), found)

    def read(
        self, program: Any, values: Values, known: Mapping[str, Collected], parameters: Sequence[tuple[Any, str]],
        model: int,
    ) -> Callable[[Values], TracedProgram]:  # fmt: skip
        """By the jaxpr, whose shapes are complete."""
        from watchglass.capture.jax.graph import read

        return lambda values: read(program.jaxpr, program.out_info, known, model)

    def value_now(self, variable: Any) -> Any:
        """Its array, which nothing changes."""
        return keras.ops.convert_to_tensor(variable)

    def is_execution(self, error: Exception) -> bool:
        """Errors of the runtime have their own class."""
        return isinstance(error, self._jax.errors.JaxRuntimeError)

    @contextmanager
    def carrying(self, collecting: Collector, enter: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Values get out of ``jax.value_and_grad`` and ``jax.grad`` as further results of the function."""
        jax = self._jax
        originals = {name: getattr(jax, name) for name in ("value_and_grad", "grad")}
        value_and_grad = originals["value_and_grad"]

        def carried(fun: Any, argnums: Any = 0, has_aux: bool = False, **options: Any) -> Any:
            @functools.wraps(fun)
            def inner(*args: Any, **kwargs: Any) -> Any:
                with enter() as values:
                    result = fun(*args, **kwargs)
                value, aux = result if has_aux else (result, None)
                return value, (aux, dict(values))

            @functools.wraps(fun)
            def outer(*args: Any, **kwargs: Any) -> Any:
                (value, (aux, values)), gradients = value_and_grad(inner, argnums, True, **options)(*args, **kwargs)
                collecting.absorb(values)
                return ((value, aux) if has_aux else value), gradients

            return outer

        def grad(fun: Any, argnums: Any = 0, has_aux: bool = False, **options: Any) -> Any:
            both = carried(fun, argnums, has_aux, **options)

            @functools.wraps(fun)
            def outer(*args: Any, **kwargs: Any) -> Any:
                value, gradients = both(*args, **kwargs)
                return (gradients, value[1]) if has_aux else gradients

            return outer

        for name, function in (("value_and_grad", carried), ("grad", grad)):
            setattr(jax, name, function)
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(jax, name, original)

    def owned(self) -> AbstractContextManager[None]:
        """No call takes them as a donation."""
        arrays: JaxArrays = member(FRAMEWORKS["jax"].arrays)
        return arrays.owned()

    def unfinished(self, logs: Mapping[str, Any]) -> Any:
        """All are computed by one program."""
        return next((each for each in logs.values() if isinstance(each, self._jax.Array)), None)

    def logs(self, result: Any) -> Any:
        """They come with the next state."""
        return result[0]

    def with_values(self, result: Any, values: dict[str, Any]) -> Any:
        """In the logs."""
        logs, state = result
        return {**logs, _KEY: values}, state

    def without_values(self, result: Any) -> tuple[Any, dict[str, Any] | None]:
        """The logs are a new dictionary of each call."""
        return result, result[0].pop(_KEY, None)


class Torch(Backend):
    """Functions run step by step, and change arrays in place; gradients lie beside the weights."""

    name = "torch"
    compiles_alike = False

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]

    def scope(self) -> object:
        """All that runs is one scope."""
        return None

    def is_execution(self, error: Exception) -> bool:
        """Nothing is traced."""
        return True

    def value_now(self, variable: Any) -> Any:
        """A copy: updates change the array."""
        value = variable.value if isinstance(variable, keras.Variable) else variable
        return value.detach().clone() if isinstance(value, self._torch.Tensor) else value

    def value_after(self, variable: Any) -> Any:
        """The array itself; the next step changes it."""
        return variable.value

    def copied_bytes(self, variable: Any) -> int:
        """Those of the array."""
        return int(variable.value.nbytes)

    def is_array(self, value: Any) -> bool:
        """Layers are called with arrays without values while they are built."""
        return isinstance(value, self._torch.Tensor) and not value.is_meta

    def kept(self, array: Any) -> Any:
        """Without what a backward needs, and with a note of how often it was changed in place."""
        if not isinstance(array, self._torch.Tensor):
            return array
        array = array.detach()
        array.version_as_collected = _version(array)
        return array

    def with_values(self, result: Any, values: dict[str, Any]) -> Any:
        """Without what was overwritten since."""
        same = {
            key: value
            for key, value in values.items()
            if not hasattr(value, "version_as_collected") or value.version_as_collected == _version(value)
        }
        return super().with_values(result, same)

    def number(self, value: Any) -> Any:
        """A float where that waits for no device."""
        if not isinstance(value, self._torch.Tensor):
            return value
        value = value.detach()
        return float(value) if value.is_cpu and value.numel() == 1 else value.clone()

    def count(self, metric: Any) -> Any:
        """Its variable as it is now."""
        return self.number(metric.count.value)


def _version(tensor: Any) -> int:
    """How often a tensor was changed in place; one of inference mode has no counter."""
    return -1 if tensor.is_inference() else int(tensor._version)


class TakenBatches:
    """Takes batches for a function, counts them and their samples, and can give them once more.

    Args:
        source: An iterator of batches.

    Attributes:
        waits: Called before it is asked for a batch.
        arrived: Called when it has returned one, or has ended.
    """

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self.waits: Callable[[], None] = lambda: None
        self.arrived: Callable[[], None] = lambda: None
        self.taken: list[Any] = []
        self.samples = 0

    def __iter__(self) -> TakenBatches:
        return self

    def __next__(self) -> Any:
        self.waits()
        try:
            batch = next(self._source)
        finally:
            self.arrived()
        self.taken.append(batch)
        self.samples += samples_of(batch)
        return batch

    def again(self) -> Iterator[Any]:
        """All batches from the first one that was taken."""
        return itertools.chain(self.taken, self._source)


def samples_of(batch: Any) -> int:
    """Samples in a batch: the length of the first array of its inputs."""
    inputs = batch[0] if isinstance(batch, tuple) else batch
    if not hasattr(inputs, "shape"):
        inputs = next((each for each in keras.tree.flatten(inputs) if each is not None), None)
    shape = getattr(inputs, "shape", None)
    return int(shape[0]) if shape else 1


@functools.cache
def backend() -> Backend | None:
    """The backend of this process; None for one whose functions are not watched so."""
    known = {each.name: each for each in (TensorFlow, Jax, Torch)}.get(keras.backend.backend())
    return None if known is None else known()
