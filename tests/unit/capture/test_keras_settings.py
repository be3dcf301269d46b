"""What layers and optimizers of Keras say of themselves is read the same in loops of Keras and of TensorFlow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from watchglass.capture.compiled.keras_activations import activation_of
from watchglass.capture.compiled.keras_optimizers import group_of
from watchglass.records import ModuleKind, facts

CONFIG = {
    "name": "adam_2", "learning_rate": 0.5, "epsilon": 1e-7, "beta_1": 0.9, "beta_2": 0.99, "clipnorm": 1.0,
    "weight_decay": None, "amsgrad": False,
}  # fmt: skip


def test_settings_have_the_names_that_rules_know() -> None:
    group = group_of(CONFIG, 0.25)
    assert group == {"lr": 0.25, "eps": 1e-7, "betas": [0.9, 0.99], "clip_norm": 1.0, "amsgrad": False}
    assert facts.OptimizerSettings("Adam", (group,)).setting("eps") == 1e-7


def test_a_schedule_has_its_class() -> None:
    config = {"learning_rate": {"class_name": "ExponentialDecay"}}
    assert group_of(config, None) == {"schedule": "ExponentialDecay"}
    assert group_of(config, 0.5) == {"schedule": "ExponentialDecay", "lr": 0.5}
    assert group_of({}, None) == {"schedule": "LearningRateSchedule"}


def _named(name: str, module: str) -> Any:
    def function(values: Any) -> Any:
        return values

    function.__name__, function.__module__ = name, module
    return function


@pytest.mark.parametrize(
    ("name", "module", "kind"),
    [
        ("relu", "keras.src.activations.activations", ModuleKind.RECTIFIER),
        ("tanh", "keras.src.activations.activations", ModuleKind.SATURATING),
        ("gelu", "keras.src.activations.activations", None),
        ("relu", "__main__", None),
    ],
)
def test_the_kind_of_an_activation_is_that_of_the_function_of_keras(name: str, module: str, kind: Any) -> None:
    assert activation_of(SimpleNamespace(activation=_named(name, module))) is kind
    assert activation_of(SimpleNamespace()) is None
