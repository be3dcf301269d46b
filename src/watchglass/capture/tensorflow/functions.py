"""What is known of the functions of a script that ``tf.function`` has compiled: what they do, where their loss is."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tensorflow as tf

from watchglass.capture.compiled.changed_variables import ChangedVariables, has_effects
from watchglass.capture.compiled.collecting import Values
from watchglass.capture.compiled.twin import Twin
from watchglass.capture.port import Port
from watchglass.capture.tensorflow.arrays import TensorFlowArrays
from watchglass.capture.tensorflow.models import TrainedModel
from watchglass.capture.tensorflow.tracing import Doings, GraphTracing, belongs

#: Operations that return what they get.
_PASSING = ("Identity", "StopGradient", "PreventGradient")
#: Operations with numbers by chance that go on from call to call.
_RANDOM = frozenset((
    "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal",
    "RandomShuffle", "RandomGamma", "RandomPoissonV2", "Multinomial",
))  # fmt: skip


@dataclass(eq=False)
class FunctionAbout:
    """What the calls of a function with some constants do.

    Attributes:
        models: TrainedModels whose gradients it takes.
        updated: TrainedModels that it changes.
        optimizers: What it calls for that.
        evaluates: Whether it calls a loss function.
        calls: Whether it calls a model.
        losses: Where the loss of each model is among the leaves of its result; None where it is not there.
        evaluated: Where the result of a loss function is there.
        judged: The number of the model whose answers a loss function judges.
        hidden: Whether it takes gradients in a loop of the graph.
        seeded: Whether it has random numbers that depend on a seed and on the calls before.
        known_whole: Whether a call was a whole step, of gradients and updates.
        collecting: The function of TensorFlow that collects all that may be wanted, and returns it with the result.
        twin: Runs it.
        losing: Collects losses only.
        ready: Those of them that are traced for the latest arguments.
    """

    models: list[TrainedModel] = field(default_factory=list)
    updated: list[TrainedModel] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    evaluates: bool = False
    calls: bool = False
    losses: dict[int, int | None] = field(default_factory=dict)
    evaluated: int | None = None
    judged: int = 0
    hidden: bool = False
    seeded: bool = False
    known_whole: bool = False
    collecting: Any = None
    twin: Twin | None = None
    losing: Twin | None = None
    ready: set[Twin] = field(default_factory=set)

    @property
    def trains(self) -> bool:
        """Whether it takes gradients."""
        return bool(self.models)

    @cached_property
    def first(self) -> int:
        """The number of the model that its steps count for."""
        return min((model.number for model in self.models), default=0)

    @property
    def is_step(self) -> bool:
        """Whether anything of it is recorded."""
        return bool(self.models or self.updated or self.evaluates or self.calls)

    @property
    def tells_losses(self) -> bool:
        """Whether its result has the losses."""
        if self.models:
            return None not in self.losses.values()
        return not self.evaluates or self.evaluated is not None


def look(
    tracing: GraphTracing, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], port: Port
) -> FunctionAbout:
    """What a function does, by its trace; it is traced now, if it was not, as its call would do.

    Raises:
        Exception: What the script raises, or TensorFlow.
    """
    count = function.experimental_get_tracing_count()
    with tracing.trace() as doings:
        concrete = function.get_concrete_function(*args, **kwargs)
    attributes = concrete.function_def.attr
    # To look up a key that is missing adds it, and a function of TensorFlow with an empty attribute cannot be called.
    compiled = "_XlaMustCompile" in attributes and bool(attributes["_XlaMustCompile"].b)
    if function.experimental_get_tracing_count() == count:
        # It was traced before anything was watched: only a second trace can tell.
        python_function = function.python_function

        def again(*args: Any, **kwargs: Any) -> Any:
            return python_function(*args, **kwargs)

        with tracing.trace() as doings:
            concrete = _again(function, again, compiled).get_concrete_function(*args, **kwargs)
    about = _about(tracing, doings, concrete.graph)
    if about.is_step:
        name = getattr(function.python_function, "__name__", "a function")
        held = tuple(map(weakref.ref, concrete.graph.variables))
        variables = lambda: [variable for each in held if (variable := each()) is not None]  # noqa: E731
        repetition = ChangedVariables(TensorFlowArrays(), variables)
        repetition.always = compiled
        repetition.runs_once = about.seeded or doings.replicated or has_effects(concrete.graph)
        arrays = TensorFlowArrays()
        # The twin of a seeded function runs at all calls, so that it is to round as the function does.
        reduces = not about.seeded and not all(map(arrays.on_host, concrete.graph.variables))
        about.collecting = _collecting(tracing, function, compiled, losses_only=False, reduces=reduces)
        about.twin = Twin(port, name, about.collecting.get_concrete_function, about.collecting, repetition)
        if not about.tells_losses:
            losing = _collecting(tracing, function, compiled, losses_only=True, reduces=False)
            about.losing = Twin(port, name, losing.get_concrete_function, losing, repetition)
    return about


def _about(tracing: GraphTracing, doings: Doings, graph: Any) -> FunctionAbout:
    losses = doings.losses(graph)
    models = [model for model in doings.models() if model.number in losses]
    outputs = tf.nest.flatten(graph.structured_outputs)
    origins = [_origins(each) for each in outputs]

    def index_of(wanted: list[Any]) -> int | None:
        ids = {id(each) for each in wanted}
        return next((at for at, found in enumerate(origins) if found & ids), None)

    found = {number: index_of([each for pair in pairs for each in pair[::-1]]) for number, pairs in losses.items()}
    # Several losses of one model in a call have a mean, which no result is.
    found = {number: at if len(losses[number]) == 1 else None for number, at in found.items()}
    if doings.replicated and None in found.values() and len(found) == 1:
        # The script has joined the losses of its replicas.
        scalars = [at for at, each in enumerate(outputs) if _is_number(each)]
        found = dict.fromkeys(found, scalars[0] if len(scalars) == 1 else None)
    judged = [result for _, result in doings.judged if belongs(result, graph)]
    assigned = _assigned(graph)
    changed = {
        model.number: model
        for model in models
        if any(assigned & _identities(variable) for variable, _ in model.parameters.values())
    }
    for optimizer, pairs in doings.updates:
        for model in tracing.models.owners(variable for variable, _ in pairs):
            model.optimizer = optimizer
            changed[model.number] = model
    return FunctionAbout(
        models, list(changed.values()), [optimizer for optimizer, _ in doings.updates],
        evaluates=bool(judged), calls=bool(doings.roots),
        losses=found, evaluated=index_of(judged[-1:]) if len(judged) == 1 else None,
        judged=tracing.judged(doings) if judged else 0, hidden=bool(doings.derived) and not losses,
        seeded=any(map(_is_seeded, graph.get_operations())),
    )  # fmt: skip


def _is_number(output: Any) -> bool:
    return isinstance(output, tf.Tensor) and output.shape.rank == 0 and output.dtype.is_floating


def _identities(variable: Any) -> set[int]:
    """A variable, and its copies on several devices."""
    copies = variable.values if isinstance(variable, tf.distribute.DistributedValues) else ()
    return {id(variable), *map(id, copies)}


def _is_seeded(operation: Any) -> bool:
    return operation.type in _RANDOM and bool(operation.get_attr("seed") or operation.get_attr("seed2"))


def _origins(output: Any) -> set[int]:
    """Identities of the tensors that a result is: as they are, passed on, or as their mean."""
    found: set[int] = set()
    while isinstance(output, tf.Tensor):
        found.add(id(output))
        if output.op.type not in (*_PASSING, "Mean") or not output.op.inputs:
            break
        if output.op.type == "Mean":
            found.add(id(output.op.inputs[0]))
            break
        output = output.op.inputs[0]
    return found


def _assigned(graph: Any) -> set[int]:
    """Identities of handles that operations of a graph assign to, as those of their variables."""
    captured = {id(inner): outer for outer, inner in graph.captures}
    handles = set()
    for op in graph.get_operations():
        if op.inputs and op.type.startswith(("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")):
            outer = captured.get(id(op.inputs[0]))
            if outer is not None:
                handles.add(id(outer))
    return {id(variable) for variable in graph.variables if id(variable.handle) in handles}


def _collecting(tracing: GraphTracing, function: Any, compiled: bool, *, losses_only: bool, reduces: bool) -> Any:
    """A function that returns the result of another one, and the values that its trace has collected."""
    python_function = function.python_function

    @contextmanager
    def frame() -> Iterator[Doings]:
        with tracing.trace() as doings:
            yield doings

    opened = tf.autograph.experimental.do_not_convert(frame)

    def close(doings: Doings) -> Values:
        graph = tf.compat.v1.get_default_graph()
        values = dict(tracing.close(doings, graph, losses_only=losses_only))
        if not losses_only:
            tracing.keep(doings, graph, values)
        return tracing.reduced(values) if reduces else values

    closed = tf.autograph.experimental.do_not_convert(close)

    # Converted by AutoGraph, and with it the function of the script.
    def collecting(*args: Any, **kwargs: Any) -> Any:
        with opened() as doings:
            result = python_function(*args, **kwargs)
            values = closed(doings)
        return result, values

    return _again(function, collecting, compiled)


def _again(function: Any, python_function: Callable[..., Any], compiled: bool) -> Any:
    """A function of Python compiled with the options of another one, whose signature it has."""
    vars(python_function)["__signature__"] = inspect.signature(function.python_function)
    return tf.function(python_function, input_signature=function.input_signature, jit_compile=compiled or None)


def taken(result: Any, index: int) -> Any:
    """A leaf of what a function has returned."""
    return result if index == 0 and isinstance(result, tf.Tensor) else tf.nest.flatten(result)[index]


def key_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Arguments by which a script chooses what a function does: TensorFlow makes a trace for each of their values."""
    found = tuple([each for each in args if type(each) in (bool, str)])
    return (found, tuple(sorted(kwargs.items()))) if kwargs and _are_constants(kwargs) else found


def _are_constants(kwargs: Mapping[str, Any]) -> bool:
    return all(type(each) in (bool, str) for each in kwargs.values())
