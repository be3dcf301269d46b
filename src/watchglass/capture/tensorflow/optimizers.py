"""What the optimizers of Keras say of themselves: settings, learning rate, updates so far, variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from watchglass.capture.compiled.collecting import Updater
from watchglass.capture.compiled.keras_optimizers import clips_of, config_of, group_of
from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.tensorflow.models import TrainedModel, variable_of
from watchglass.records import facts

#: The state by whose root an adaptive optimizer divides.
SECOND_MOMENT = "velocity"


def settings_of(optimizer: Any, number: int | None) -> facts.OptimizerSettings:
    """The fact about an optimizer and the model that it trains."""
    inner = inner_of(optimizer)
    group = group_of(config_of(inner), rate_of(optimizer))
    return facts.OptimizerSettings(type(inner).__name__, (group,), number)


def updater_of(optimizer: Any) -> Updater:
    """What its updates depend on."""
    inner = inner_of(optimizer)
    settings = config_of(inner)
    numbers = {name: value for name, value in settings.items() if isinstance(value, (int, float))}
    group = facts.UpdateGroup(
        weight_decay=float(numbers.get("weight_decay", 0.0)), decoupled=True,
        eps=numbers.get("epsilon"), beta2=numbers.get("beta_2", numbers.get("rho")),
    )  # fmt: skip
    return Updater(type(inner).__name__, (group,), skips=inner is not optimizer, clips=clips_of(settings))


def inner_of(optimizer: Any) -> Any:
    """The optimizer that changes the weights, inside one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def rate_of(optimizer: Any) -> float | None:
    """The present learning rate, read from its variable or computed by its schedule; None if it has none."""
    try:
        with tf.init_scope():
            return _number(inner_of(optimizer).learning_rate)
    except (AttributeError, TypeError, ValueError):
        return None


def scale_of(optimizer: Any) -> float | None:
    """What an optimizer multiplies losses with before gradients are taken; None if it does not."""
    scale = getattr(optimizer, "dynamic_scale", None)
    if scale is None and hasattr(optimizer, "inner_optimizer"):
        scale = getattr(optimizer, "initial_scale", None)
    if scale is None:
        scale = getattr(optimizer, "loss_scale_factor", None)
    if scale is None:
        return None
    with tf.init_scope():
        return _number(scale)


def updates_before(optimizer: Any) -> int:
    """Updates that an optimizer has made, also in the process that saved it."""
    count = getattr(optimizer, "iterations", None)
    with tf.init_scope():
        return 0 if count is None else int(_number(count))


def states_of(optimizer: Any, model: TrainedModel) -> Iterator[tuple[str, ParameterPlace, Any]]:
    """Variables of an optimizer: the name of the state, and the parameter that it is of."""
    parameters = {_path_of(variable): place for variable, place in model.parameters.values()}
    for held in _variables(inner_of(optimizer)):
        variable = variable_of(held)
        if variable is None or not variable.dtype.is_floating or not variable.shape.rank:
            continue
        name = str(getattr(held, "name", variable.name))
        owner = next((path for path in parameters if path and name.startswith(f"{path}_")), None)
        if owner is not None:
            yield name[len(owner) + 1 :], parameters[owner], variable


def _number(value: Any) -> float:
    """A number, of which several devices may have copies."""
    variable = variable_of(value)
    return float(value if variable is None else variable.value())


def _variables(optimizer: Any) -> Iterable[Any]:
    variables = getattr(optimizer, "variables", ())
    return variables() if callable(variables) else variables


def _path_of(variable: Any) -> str:
    """What Keras makes of the path of a variable in the names of states."""
    return str(variable.name).partition(":")[0].replace("/", "_")
