"""What a loss of Keras is, by the name of its class or function: no framework is needed for it."""

from __future__ import annotations

from typing import Any

import pytest

from watchglass.capture.compiled.keras_losses import KerasLoss, of_function, of_object


def loss(*names: str, module: str = "keras.src.losses.losses", **settings: Any) -> Any:
    """An object of a class of the first name, derived from the others."""
    kind: type = object
    for name in reversed(names):
        kind = type(name, (kind,), {"__module__": module})
    made = kind()
    vars(made).update(settings)
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (loss("MeanSquaredError", reduction="sum_over_batch_size"), KerasLoss("mse_loss", "mean", None, 0.0)),
        (loss("KLDivergence", reduction="sum"), KerasLoss("kl_div", "sum", None, 0.0)),
        (
            loss("SparseCategoricalCrossentropy", from_logits=True, ignore_class=-1, reduction=None),
            KerasLoss("cross_entropy", "none", -1, 0.0),
        ),
        (loss("Mine", "BinaryCrossentropy", label_smoothing=0.1), KerasLoss("binary_cross_entropy", "none", None, 0.1)),
        (loss("Mine"), None),
        (loss("Huber", module="script"), None),
    ],
)
def test_losses_are_known_by_their_class(given: Any, expected: KerasLoss | None) -> None:
    assert of_object(given) == expected


def test_functions_are_what_their_arguments_say() -> None:
    assert of_function("categorical_crossentropy", {}) == KerasLoss("nll_loss", "none", None, 0.0)
    assert of_function("binary_crossentropy", {"from_logits": True}).function == "binary_cross_entropy_with_logits"
