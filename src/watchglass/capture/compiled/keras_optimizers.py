"""Settings of optimizers of Keras: loops of Keras and of TensorFlow use the same ones."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from watchglass.records import facts

#: Settings of optimizers that limit gradients: the fields of the fact.
_CLIPS = {
    "clipnorm": lambda limit: {"max_norm": limit, "norm_of": "each variable"},
    "global_clipnorm": lambda limit: {"max_norm": limit},
    "clipvalue": lambda limit: {"clip_value": limit},
}


def clips_of(config: Mapping[str, Any]) -> tuple[facts.Clip, ...]:
    """How an optimizer with these settings clips the gradients that it gets."""
    limits = {name: config.get(name) for name in _CLIPS}
    return tuple(
        facts.Clip(name, **_CLIPS[name](float(limit)))
        for name, limit in limits.items()
        if isinstance(limit, (int, float)) and limit > 0
    )


def config_of(optimizer: Any) -> dict[str, Any]:
    """The settings of an optimizer by name.

    A schedule of the script need not say what it consists of, and then the optimizer cannot say it either: its
    attributes with the names of its arguments are read instead, without the learning rate.

    Args:
        optimizer: A ``keras.optimizers.Optimizer``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Keras, about NumPy
        try:
            return dict(optimizer.get_config())
        except Exception:  # code of the script
            arguments = set(inspect.signature(type(optimizer)).parameters) - {"learning_rate"}
            return {name: value for name, value in vars(optimizer).items() if name in arguments}


def schedule_of(config: Mapping[str, Any]) -> str | None:
    """The type of the schedule that gives the learning rate of each update; None where these settings have none.

    Args:
        config: Of :func:`config_of`.
    """
    rate = config.get("learning_rate")
    return str(rate.get("class_name")) if isinstance(rate, Mapping) else None
