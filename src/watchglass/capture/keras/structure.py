"""The structure of Keras models: layers with paths, kinds and order, weights with names; calls of layers."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import keras

from watchglass.capture.compiled.keras_activations import activation_of
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.modules import Modules
from watchglass.records import ModuleKind

_LAYERS = keras.layers
#: Kinds of Keras's classes; of a derived class the first in its order of resolution counts.
_KINDS: dict[ModuleKind, tuple[str, ...]] = {
    ModuleKind.LINEAR: ("Dense", "EinsumDense"),
    ModuleKind.CONVOLUTION: tuple(
        f"{name}{axes}D" for name in ("Conv", "DepthwiseConv", "SeparableConv") for axes in (1, 2, 3)
    ) + tuple(f"Conv{axes}DTranspose" for axes in (1, 2, 3)),
    ModuleKind.RECURRENT: (
        "RNN", "LSTM", "GRU", "SimpleRNN", "LSTMCell", "GRUCell", "SimpleRNNCell", "StackedRNNCells", "Bidirectional",
        "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D",
    ),
    ModuleKind.EMBEDDING: ("Embedding", "ReversibleEmbedding"),
    ModuleKind.NORMALIZATION: (
        "BatchNormalization", "LayerNormalization", "GroupNormalization", "UnitNormalization", "SpectralNormalization",
        "RMSNormalization", "Normalization",
    ),
    ModuleKind.ATTENTION: ("Attention", "AdditiveAttention", "MultiHeadAttention", "GroupQueryAttention"),
    ModuleKind.RECTIFIER: ("ReLU",),
    ModuleKind.SOFTMAX: ("Softmax",),
    ModuleKind.ACTIVATION: ("Activation", "ELU", "LeakyReLU", "PReLU"),
    ModuleKind.DROPOUT: (
        "Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", "SpatialDropout2D",
        "SpatialDropout3D",
    ),
    ModuleKind.POOLING: tuple(
        f"{name}{axes}D"
        for name in ("MaxPooling", "AveragePooling", "GlobalMaxPooling", "GlobalAveragePooling", "AdaptiveMaxPooling",
                     "AdaptiveAveragePooling")
        for axes in (1, 2, 3)
    ),
    ModuleKind.CONTAINER: ("Wrapper", "TimeDistributed"),
}  # fmt: skip
_BY_CLASS = {
    cls: kind for kind, names in _KINDS.items() for name in names if (cls := getattr(_LAYERS, name, None)) is not None
}
#: Variables of normalizations that no optimizer changes.
_RUNNING = frozenset(("moving_mean", "moving_variance", "mean", "variance", "count"))


class KerasModules(Modules):
    """Models by the tree of their layers, with the layers' own names, in order; input layers are none."""

    def is_model(self, value: object) -> bool:
        """Whether this is a layer, maybe a model."""
        return isinstance(value, keras.Layer)

    def modules(self, model: Any) -> Iterable[tuple[Any, Place]]:
        """The layers of a model with their places, in order; those made so far."""
        return ((layer, place) for layer, place in _walk(model))

    def parameters(self, model: Any) -> Iterable[tuple[Any, ParameterPlace]]:
        """The weights of a model that can be trained, as arrays of the backend, with their names."""
        return ((variable.value, place) for variable, place in variables(model))

    def observe(
        self, model: Any, entered: Callable[[Any, Any], None], returned: Callable[[Any, Any, Any], None]
    ) -> Callable[[], None]:
        """By a wrapper around ``keras.Layer.__call__``, until it is undone."""
        own = {id(layer) for layer, _ in self.modules(model)}
        return observe_calls(
            lambda layer, arguments: entered(layer, arguments) if id(layer) in own else None,
            lambda layer, arguments, output: returned(layer, arguments, output) if id(layer) in own else None,
        )

    def crashed(self, trace: TracebackType | None) -> tuple[str, str]:
        """The innermost layer in a traceback, and the shape of what it worked on.

        Keras leaves its own frames out of tracebacks: what remains is the model, as an argument of the outermost one,
        and layers of the script.
        """
        layers: list[Any] = []
        figures = ""
        while trace is not None:
            code, found = trace.tb_frame.f_code, trace.tb_frame.f_locals
            layer = found.get("self") or next(iter(found.get("args") or ()), None)
            if isinstance(layer, keras.Layer):
                layers.append(layer)
                given = (found.get(name) for name in code.co_varnames[1 : code.co_argcount])
                figures = next((_figures(each) for each in given if hasattr(each, "shape")), "")
            trace = trace.tb_next
        if not layers:
            return "", ""
        path = next((place.path for each, place in _walk(layers[0]) if each is layers[-1]), "")
        kind = type(layers[-1]).__name__
        return (f"{path} ({kind})" if path else kind), figures


def variables(model: Any) -> Iterator[tuple[Any, ParameterPlace]]:
    """The weights of a model that an optimizer may change, as ``keras.Variable``, in order, each once."""
    seen: set[int] = set()
    for layer, place in _walk(model):
        inner = {id(weight) for child in _children(layer) for weight in child.weights}
        for weight in layer.weights:
            if id(weight) in inner or id(weight) in seen or not _is_trained(weight, layer, place):
                continue
            seen.add(id(weight))
            leaf = weight.name
            yield weight, ParameterPlace(place.named(leaf), leaf, place, _unit_axis(leaf, place))


def observe_calls(entered: Callable[[Any, Any], None], returned: Callable[[Any, Any, Any], None]) -> Callable[[], None]:
    """Observe the calls of all layers until the result is called.

    Args:
        entered: Called with a layer and its positional arguments, before it runs.
        returned: Called with these and what it returned.
    """
    original = keras.Layer.__call__

    @functools.wraps(original)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        entered(layer, args)
        result = original(layer, *args, **kwargs)
        returned(layer, args, result)
        return result

    keras.Layer.__call__ = call

    def undo() -> None:
        if vars(keras.Layer)["__call__"] is call:
            keras.Layer.__call__ = original

    return undo


def kind_of(layer: Any) -> ModuleKind:
    """Kind of a layer: that of the first class of Keras that it is derived from, else whether it holds others."""
    found = next((_BY_CLASS[cls] for cls in type(layer).__mro__ if cls in _BY_CLASS), None)
    if found is ModuleKind.ACTIVATION:
        return activation_of(layer) or found
    if found is not None:
        return found
    return ModuleKind.CONTAINER if next(_children(layer), None) is not None else ModuleKind.OTHER


def _walk(model: Any) -> Iterator[tuple[Any, Place]]:
    seen: set[int] = set()
    waiting = [("", model)]
    index = 0
    while waiting:
        path, layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer, Place(path, type(layer).__name__, index, kind=kind_of(layer))
        index += 1
        named = reversed(_named(_children(layer)))
        waiting.extend((f"{path}.{name}" if path else name, child) for name, child in named)


def _named(layers: Iterable[Any]) -> list[tuple[str, Any]]:
    """The layers of one layer with their names; numbers that Keras counts in the process are counted here."""
    found: dict[str, Any] = {}
    for layer in layers:
        automatic = _snake_case(type(layer).__name__)
        name = automatic if re.fullmatch(rf"{automatic}(_\d+)?", layer.name) else layer.name.replace(".", "_")
        numbered = (f"{name}_{number}" if number else name for number in itertools.count())
        found[next(each for each in numbered if each not in found)] = layer
    return list(found.items())


def _snake_case(name: str) -> str:
    """What Keras makes of the name of a class for its objects."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _children(layer: Any) -> Iterator[Any]:
    """Layers that a layer holds, each once, in order."""
    held = layer.layers if isinstance(layer, keras.Model) else _held(vars(layer).values())
    seen: set[int] = {id(layer)}
    for each in held:
        if id(each) not in seen and not isinstance(each, keras.layers.InputLayer):
            seen.add(id(each))
            yield each


def _held(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, keras.Layer):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (each for each in value if isinstance(each, keras.Layer))
        elif isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, keras.Layer))


def _is_trained(weight: Any, layer: Any, place: Place) -> bool:
    """Whether an optimizer may change a weight, also one of a frozen layer."""
    if weight.trainable or layer.trainable:
        return bool(weight.trainable)
    return place.kind is not ModuleKind.NORMALIZATION or weight.name not in _RUNNING


def _unit_axis(leaf: str, place: Place) -> int:
    if place.kind is ModuleKind.EMBEDDING:
        return 0  # rows, as in every framework
    # Kernels are (..., inputs, units); these are (..., inputs, units of each) and (..., units, inputs).
    second = leaf.startswith("depthwise") or place.module_type.endswith("Transpose")
    return -2 if leaf.endswith("kernel") and (second or place.module_type.startswith("Depthwise")) else -1


def _figures(array: Any) -> str:
    return f"an input of shape {tuple(array.shape)} and dtype {keras.backend.standardize_dtype(array.dtype)}"
