"""Settings of optimizers of Keras: loops of Keras and of TensorFlow use the same ones."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from watchglass.records import facts

#: Names of settings as those of other frameworks are called.
_NAMES = {"learning_rate": "lr", "epsilon": "eps", "clipnorm": "clip_norm"}
#: Settings of optimizers that limit gradients: the fields of the fact.
_CLIPS = {
    "clipnorm": lambda limit: {"max_norm": limit, "norm_of": "each variable"},
    "global_clipnorm": lambda limit: {"max_norm": limit},
    "clipvalue": lambda limit: {"clip_value": limit},
}


def group_of(config: Mapping[str, Any], rate: float | None) -> dict[str, Any]:
    """Settings of an optimizer that are numbers or words, under the names that rules know.

    Args:
        config: Of :func:`config_of`.
        rate: Its present learning rate; None where only a schedule knows it.
    """
    group: dict[str, Any] = {
        _NAMES.get(name, name): value
        for name, value in config.items()
        if isinstance(value, (int, float, bool, str)) and name != "name"
    }
    if "beta_1" in group and "beta_2" in group:
        group["betas"] = [group.pop("beta_1"), group.pop("beta_2")]
    schedule = schedule_of(config) or ("LearningRateSchedule" if rate is None else None)
    return group | ({} if rate is None else {"lr": rate}) | ({} if schedule is None else {"schedule": schedule})


def schedule_of(config: Mapping[str, Any]) -> str | None:
    """The type of the schedule that gives the learning rate of each update; None where these settings have none.

    Args:
        config: Of :func:`config_of`.
    """
    rate = config.get("learning_rate")
    return str(rate.get("class_name")) if isinstance(rate, Mapping) else None


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
