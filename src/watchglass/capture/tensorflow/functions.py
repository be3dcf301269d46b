"""What is known of the functions of a script that ``tf.function`` has compiled: what they do, where their loss is."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tensorflow as tf

from watchglass.capture.compiled.changed_variables import ChangedVariables, has_effects, is_seeded, nodes_of
from watchglass.capture.compiled.collecting import Values
from watchglass.capture.compiled.twin import Twin
from watchglass.capture.port import Port
from watchglass.capture.tensorflow.arrays import TensorFlowArrays
from watchglass.capture.tensorflow.models import TrainedModel
from watchglass.capture.tensorflow.second_traces import SecondTraces, assigned_in, is_compiled_whole
from watchglass.capture.tensorflow.tracing import Doings, GraphTracing, belongs

_log = logging.getLogger("watchglass")

#: Operations that return what they get.
_PASSING = ("Identity", "StopGradient", "PreventGradient")


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
        replicated: Whether replicas run in it.
        seeded: Whether it has random numbers that depend on a seed and on the calls before.
        known_whole: Whether a call was a whole step, of gradients and updates.
        row_loss: Where the loss of a whole step is, of one model, so that nothing else is read where nothing is due.
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
    replicated: bool = False
    seeded: bool = False
    known_whole: bool = False
    row_loss: int | None = None
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
    second: SecondTraces, tracing: GraphTracing, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any],
    port: Port,
) -> FunctionAbout:  # fmt: skip
    """What a function does, by its trace; it is traced now, if it was not, as its call would do.

    Raises:
        Exception: What the script raises, or TensorFlow.
    """
    count = function.experimental_get_tracing_count()
    with tracing.trace() as doings:
        concrete = function.get_concrete_function(*args, **kwargs)
    graph, compiled = concrete.graph, is_compiled_whole(concrete)
    nodes = nodes_of(graph)
    seeded = is_seeded(nodes)
    arrays = TensorFlowArrays()
    # The twin of a seeded function runs at all calls, so that it is to round as the function does.
    reduces = not seeded and not all(map(arrays.on_host, graph.variables))
    collecting = _Collecting(second, tracing, function, compiled, losses_only=False, reduces=reduces)
    about = _about(tracing, doings, graph, graph.structured_outputs)
    if function.experimental_get_tracing_count() == count or doings.unseen or (doings.nests and not doings.is_empty):
        # It, or what it calls, was traced before anything was watched, or in other graphs: its twin tells.
        try:
            again = collecting.function.get_concrete_function(*args, **kwargs).graph
            about = _about(tracing, collecting.latest, again, again.structured_outputs[0])
        except Exception as error:  # of the script, whose function can be traced once
            _log.debug("watchglass: %s was not traced a second time: %s", function, error)
            about = about if about.trains else FunctionAbout()
    about.seeded = seeded
    if about.is_step:
        name = getattr(function.python_function, "__name__", "a function")
        held = tuple(map(weakref.ref, graph.variables))
        variables = lambda: [variable for each in held if (variable := each()) is not None]  # noqa: E731
        repetition = ChangedVariables(TensorFlowArrays(), variables)
        repetition.always = compiled or any(map(_is_fused, graph.as_graph_def().library.function))
        repetition.runs_once = seeded or about.replicated or has_effects(nodes)
        about.collecting = collecting.function
        about.twin = Twin(port, name, about.collecting.get_concrete_function, about.collecting, repetition)
        if not about.tells_losses:
            losing = _Collecting(second, tracing, function, compiled, losses_only=True, reduces=False).function
            about.losing = Twin(port, name, losing.get_concrete_function, losing, repetition)
    return about


def _about(tracing: GraphTracing, doings: Doings, graph: Any, returned: Any) -> FunctionAbout:
    losses = doings.losses(graph)
    models = [model for model in doings.models() if model.number in losses]
    outputs = tf.nest.flatten(returned)
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
    assigned = assigned_in(graph) | doings.assigned
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
        replicated=doings.replicated,
    )  # fmt: skip


def _is_number(output: Any) -> bool:
    return isinstance(output, tf.Tensor) and output.shape.rank == 0 and output.dtype.is_floating


def _identities(variable: Any) -> set[int]:
    """A variable, and its copies on several devices."""
    copies = variable.values if isinstance(variable, tf.distribute.DistributedValues) else ()
    return {id(variable), *map(id, copies)}


def _is_fused(definition: Any) -> bool:
    """Whether XLA compiles all of a function in the library of a graph."""
    return bool(definition.attr["_XlaMustCompile"].b)


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


class _Collecting:
    """A function that returns the result of one of the script, and the values that its trace has collected.

    Args:
        second: Traces it.
        tracing: Collects the values.
        function: That of the script.
        compiled: Whether XLA compiles all of it.
        losses_only: Whether it collects only losses.
        reduces: Whether it reduces the values.

    Attributes:
        function: The function of TensorFlow.
        latest: What happened in its latest trace.
    """

    latest: Doings

    def __init__(
        self, second: SecondTraces, tracing: GraphTracing, function: Any, compiled: bool, *, losses_only: bool,
        reduces: bool,
    ) -> None:  # fmt: skip
        self._tracing, self._losses_only, self._reduces = tracing, losses_only, reduces
        self.function = second.of(function, compiled, self._close, losses_only=losses_only)

    def _close(self, doings: Doings, result: Any) -> Values:
        self.latest = doings
        graph = tf.compat.v1.get_default_graph()
        values = dict(self._tracing.close(doings, graph, losses_only=self._losses_only))
        if not self._losses_only:
            self._tracing.keep(doings, graph, values)
        return self._tracing.reduced(values) if self._reduces else values


def taken(result: Any, index: int) -> Any:
    """A leaf of what a function has returned."""
    return result if index == 0 and isinstance(result, tf.Tensor) else tf.nest.flatten(result)[index]


def key_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Arguments by which a script chooses what a function does: TensorFlow makes a trace for each of their values."""
    found = tuple([each for each in args if type(each) in (bool, str)])
    return (found, tuple(sorted(kwargs.items()))) if kwargs and _are_constants(kwargs) else found


def _are_constants(kwargs: Mapping[str, Any]) -> bool:
    return all(type(each) in (bool, str) for each in kwargs.values())
