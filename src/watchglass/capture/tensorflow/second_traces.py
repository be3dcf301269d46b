"""Functions of a script that are traced again, with those that they call, to return what happens in them."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from watchglass.capture.tensorflow.tracing import Doings, GraphTracing, belongs

#: Packages whose compiled functions are none of the script.
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "watchglass")


def is_of_script(function: Any) -> bool:
    """Whether a compiled function was written in the script, or in what it imports."""
    package = (getattr(function.python_function, "__module__", None) or "").partition(".")[0]
    # A strategy makes a function of TensorFlow out of one of the script, that runs it for each replica.
    return package not in _LIBRARIES or (package == "tensorflow" and tf.distribute.has_strategy())


def is_compiled_whole(concrete: Any) -> bool:
    """Whether XLA compiles all of a function."""
    attributes = concrete.function_def.attr
    # To look up a key that is missing adds it, and a function of TensorFlow with an empty attribute cannot be called.
    return "_XlaMustCompile" in attributes and bool(attributes["_XlaMustCompile"].b)


def assigned_in(graph: Any) -> set[int]:
    """Identities of the variables that operations of a graph assign to."""
    captured = {id(inner): outer for outer, inner in graph.captures}
    handles = set()
    for op in graph.get_operations():
        if op.inputs and op.type.startswith(("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")):
            outer = captured.get(id(op.inputs[0]))
            if outer is not None:
                handles.add(id(outer))
    return {id(variable) for variable in graph.variables if id(variable.handle) in handles}


class SecondTraces:
    """Functions of TensorFlow that return the result of one of the script, and what its trace has shown.

    A nested function keeps a graph of its own and returns what happens in it. If it were inlined, it would draw other
    random numbers, because their seeds depend on the graph, and gradients could be added in another order.

    Args:
        tracing: Has the traces that are open.
    """

    def __init__(self, tracing: GraphTracing) -> None:
        self._tracing = tracing
        # By whether only losses are wanted.
        self._nested: dict[bool, weakref.WeakKeyDictionary[Any, _NestedFunction]] = {
            losses_only: weakref.WeakKeyDictionary() for losses_only in (False, True)
        }

    def release(self) -> None:
        """No function is traced a second time any more."""
        for nested in self._nested.values():
            nested.clear()

    def of(self, function: Any, compiled: bool, close: Callable[[Doings, Any], Any], *, losses_only: bool) -> Any:
        """Such a function, with the options of that of the script.

        Args:
            function: That of the script.
            compiled: Whether XLA compiles all of it.
            close: Called at the end of a trace, with what has happened in it and its result; returns what the function
                returns beside the result.
            losses_only: Whether functions that are called in it return only their losses.
        """
        python_function = function.python_function

        @contextmanager
        def frame() -> Iterator[Doings]:
            with self._tracing.trace() as doings:
                doings.call_nested = functools.partial(self._call, losses_only)
                yield doings

        opened, closed = map(tf.autograph.experimental.do_not_convert, (frame, close))

        # Converted by AutoGraph, and with it the function of the script.
        def collecting(*args: Any, **kwargs: Any) -> Any:
            with opened() as doings:
                result = python_function(*args, **kwargs)
                values = closed(doings, result)
            return result, values

        vars(collecting)["__signature__"] = inspect.signature(python_function)
        return tf.function(collecting, input_signature=function.input_signature, jit_compile=compiled or None)

    def _call(self, losses_only: bool, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a function that is called in a second trace, which gets what happens in it."""
        known = self._nested[losses_only].get(function)
        if known is None:
            with self._tracing.trace():  # what was not traced before shows nothing to the trace that is open
                compiled = is_compiled_whole(function.get_concrete_function(*args, **kwargs))
            known = _NestedFunction(losses_only)
            known.function = self.of(function, compiled, known.close, losses_only=losses_only)
            self._nested[losses_only][function] = known
        result, more = known.function(*args, **kwargs)
        self._tracing.open[-1].add(known.happened(result, more))
        return result


class _NestedFunction:
    """A function that is called in second traces of others.

    Args:
        losses_only: Whether it returns only its losses.

    Attributes:
        function: It, returning what has happened in it.
    """

    function: Any

    def __init__(self, losses_only: bool) -> None:
        self._losses_only = losses_only
        # Of each trace, what has happened in it, its graph, and the tensors of that which it returns.
        self._traces: list[tuple[Doings, Any, list[Any]]] = []

    def close(self, doings: Doings, result: Any) -> dict[str, list[Any]]:
        """The tensors of a trace, under its number."""
        graph = tf.compat.v1.get_default_graph()
        if self._losses_only:
            doings = doings.losses_alone()
        returned = tf.nest.flatten(result)
        held, more = set(map(id, returned)), []

        def hold(tensor: Any) -> Any:
            if id(tensor) not in held and belongs(tensor, graph):
                held.add(id(tensor))
                more.append(tensor)
            return tensor

        doings.changed(hold)
        self._traces.append((doings, graph, [*returned, *more]))
        # No gradient passes these: else zeros would flow back from them, which are no numbers where a root is zero.
        return {str(len(self._traces) - 1): list(map(tf.stop_gradient, more))}

    def happened(self, result: Any, more: dict[str, list[Any]]) -> Doings:
        """What has happened in a call, in the graph of the caller."""
        ((number, tensors),) = more.items()
        doings, graph, inside = self._traces[int(number)]
        doings.assigned |= assigned_in(graph)  # a graph has its variables once it is complete
        outside = dict(zip(map(id, inside), (*tf.nest.flatten(result), *tensors), strict=True))
        return doings.changed(lambda tensor: outside.get(id(tensor), tensor))
