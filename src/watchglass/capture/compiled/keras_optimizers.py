"""Settings of optimizers of Keras: loops of Keras and of TensorFlow use the same ones."""

from __future__ import annotations

import inspect
import warnings
from typing import Any


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
