"""The structure of ``tf.Module``s: attributes that are modules, and variables with the names of their attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.modules import Modules
from watchglass.records import ModuleKind

#: What scripts call a bias.
_BIASES = frozenset(("b", "bias"))


class TensorFlowModules(Modules):
    """Modules by the attributes of their parents, in lists and dictionaries too, in the order they were set in."""

    def is_model(self, value: object) -> bool:
        """Whether this is a module."""
        return isinstance(value, tf.Module)

    def modules(self, model: Any) -> Iterable[tuple[Any, Place]]:
        """The modules of a model with their places."""
        return ((module, place) for module, place, _ in _walk(model))

    def parameters(self, model: Any) -> Iterable[tuple[Any, ParameterPlace]]:
        """The trainable variables of a model with their names, each once."""
        seen: set[int] = set()
        for _, place, variables in _walk(model):
            for leaf, variable in variables:
                if variable.trainable and id(variable) not in seen:
                    seen.add(id(variable))
                    yield variable, ParameterPlace(place.named(leaf), _word(leaf, variable), place, -1)


def _walk(model: Any) -> Iterator[tuple[Any, Place, list[tuple[str, Any]]]]:
    seen, waiting, index = {id(model)}, [("", model)], 0
    while waiting:
        path, module = waiting.pop()
        held = list(_held(vars(module)))
        variables = [(name, value) for name, value in held if isinstance(value, tf.Variable)]
        children = [(name, value) for name, value in held if isinstance(value, tf.Module) and id(value) not in seen]
        seen.update(id(value) for _, value in children)
        yield module, Place(path, type(module).__name__, index, kind=_kind(variables, children)), variables
        index += 1
        waiting += reversed([(f"{path}.{name}" if path else name, value) for name, value in children])


def _held(values: Any) -> Iterator[tuple[str, Any]]:
    """Variables and modules in a dictionary, and in lists and dictionaries in it, with their paths."""
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        if str(name).startswith("_self_"):  # what TensorFlow keeps in the object
            continue
        if isinstance(value, (tf.Variable, tf.Module)):
            yield str(name), value
        elif isinstance(value, (list, tuple, dict)):
            yield from ((f"{name}.{path}", each) for path, each in _held(value))


def _kind(variables: list[tuple[str, Any]], children: list[Any]) -> ModuleKind:
    if not variables:
        return ModuleKind.CONTAINER if children else ModuleKind.OTHER
    matrices = [(name, variable) for name, variable in variables if len(variable.shape) > 1]
    if any("embed" in name.lower() for name, _ in matrices):
        return ModuleKind.EMBEDDING
    axes = max((len(variable.shape) for _, variable in matrices), default=0)
    return ModuleKind.OTHER if axes < 2 else ModuleKind.LINEAR if axes == 2 else ModuleKind.CONVOLUTION


def _word(leaf: str, variable: Any) -> str:
    """What a variable is called as a leaf: frameworks write "bias", scripts "b"."""
    name = leaf.rpartition(".")[2]
    return "bias" if name.rstrip("0123456789") in _BIASES and len(variable.shape) <= 1 else name
