"""What goes wrong with trainings, as data: the causes, and how strongly each symptom speaks for each cause.

A rule reports *symptoms*; a diagnosis adds up, for every cause, what the symptoms of all findings say, and ranks.
To teach watchglass a new disease, add a :class:`Cause` and its links; no code changes. Weights are ours (house),
chosen so that a symptom which proves a cause outweighs any number of symptoms that merely fit it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from watchglass.records import Cause


class Link(NamedTuple):
    """How strongly a symptom speaks for a cause.

    Attributes:
        symptom: Identifier of the symptom.
        cause: Identifier of the cause.
        weight: In (0, 1): the probability that the cause alone would explain the symptom. In (-1, 0): the share of the
            cause's odds that the symptom takes away.
    """

    symptom: str
    cause: str
    weight: float


_CAUSES = (
    Cause(
        "learning_rate_too_high",
        "the learning rate is too high",
        "Each update overshoots, so weights, activations and gradients grow from step to step until they overflow. "
        "The loss rises before it becomes NaN.",
        (
            "Lower the learning rate by a factor of 10",
            "Warm the learning rate up over the first few hundred steps",
            "Clip the gradient norm, to 1.0 for a start",
        ),
        "Goodfellow et al., Deep Learning, 11.4.1; AutoTrainer (Zhang et al., ICSE 2021)",
    ),
    Cause(
        "learning_rate_too_low",
        "the learning rate is too low",
        "Updates are so small beside the weights that the loss barely moves.",
        (
            "Raise the learning rate by a factor of 10",
            "Check that the learning-rate schedule starts where you think it does",
        ),
        "Update-to-weight ratio of about 1e-3: Karpathy, CS231n notes; house",
    ),
    Cause(
        "deep_saturating_activations",
        "a deep stack of saturating activations lets no gradient through to the first layers",
        "The derivative of a sigmoid is at most 0.25 and that of tanh at most 1, so the gradient shrinks with every "
        "such layer, and the first layers learn next to nothing.",
        (
            "Replace the sigmoid or tanh activations of the hidden layers by ReLU, GELU or SiLU",
            "Add batch or layer normalisation between the layers, or residual connections around them",
            "Use fewer layers, or Xavier initialisation with the gain of the activation",
        ),
        "Glorot and Bengio, AISTATS 2010; Hochreiter 1991",
    ),
    Cause(
        "vanishing_over_depth",
        "the gradient vanishes on its way to the first layers",
        "Every layer passes on less gradient than it receives, so the first layers learn next to nothing.",
        (
            "Initialise the weights to keep the variance (Kaiming for ReLU, Xavier for tanh)",
            "Add normalisation between the layers, or residual connections around them",
        ),
        "He et al., ICCV 2015; He et al., CVPR 2016",
    ),
    Cause(
        "dying_relu",
        "most ReLU units have died",
        "A ReLU whose input is negative for every sample gives zero and passes no gradient, so it never comes back. "
        "Large updates or strongly negative biases push units there.",
        (
            "Use LeakyReLU, GELU or SiLU instead of ReLU",
            "Lower the learning rate, at least at the start",
            "Initialise the biases with zero and the weights with Kaiming initialisation",
        ),
        "Lu et al., Dying ReLU and Initialization, 2019; AutoTrainer (ICSE 2021)",
    ),
    Cause(
        "identical_initialization",
        "the units of a layer start with identical weights",
        "Units with the same weights compute the same and receive the same gradient, so they stay copies of each "
        "other and a wide layer learns no more than a single unit.",
        (
            "Initialise the weights at random (torch.nn.init.kaiming_normal_), only biases with a constant",
            "Look for code that fills weights with a constant or copies one row into all",
        ),
        "Goodfellow et al., Deep Learning, 8.4",
    ),
    Cause(
        "poor_initialization_scale",
        "the initial weights have the wrong scale",
        "Where the spread of the weights does not fit the size of their layer, the signal grows or shrinks with every "
        "layer.",
        (
            "Initialise with a scale that fits the layer: std = sqrt(2 / fan_in) for ReLU, sqrt(1 / fan_in) for tanh",
            "Add normalisation between the layers",
        ),
        "Glorot and Bengio, AISTATS 2010; He et al., ICCV 2015",
    ),
    Cause(
        "overfitting",
        "the model overfits its training data",
        "The training loss still falls while the validation loss rises: the model memorises its samples.",
        (
            "Stop at the step with the lowest validation loss, and keep that checkpoint",
            "Get more data, or augment what you have",
            "Use weight decay, dropout or a smaller model",
        ),
        "Prechelt, Early Stopping - But When?, 1998",
    ),
    Cause(
        "bad_data",
        "the data hold NaN or infinite values",
        "One such value in a batch makes every activation that depends on it NaN.",
        (
            "Check the samples of this batch for NaN and infinities, and how missing values are filled",
            "Check the normalisation of the inputs for a division by a standard deviation of zero",
        ),
    ),
    Cause(
        "overflow_in_loss",
        "the loss function itself overflows",
        "All outputs of the model are finite but the loss is not: typically log(0), a division by zero or exp of a "
        "large number inside the loss.",
        (
            "Use a loss that takes logits (cross_entropy, binary_cross_entropy_with_logits), not log and softmax",
            "Add a small epsilon inside log and under a division",
            "Check for labels outside the range of the outputs, and for empty or fully masked batches",
        ),
    ),
    Cause(
        "overflow_in_module",
        "a computation inside the model overflows",
        "A module turns finite inputs into NaN or infinite outputs: typically exp, log, sqrt or a division.",
        (
            "Guard the computation in that module: an epsilon under sqrt, log and divisions, a clamp before exp",
            "Check for fully masked rows in attention",
        ),
    ),
    Cause(
        "overflow_in_backward",
        "a derivative overflows although the forward pass is finite",
        "Typically sqrt or a norm at exactly zero, or a power with a fractional exponent: the value is finite and its "
        "derivative is not.",
        (
            "Add a small epsilon under sqrt and norms in that module",
            "Run the step under torch.autograd.set_detect_anomaly(True) to see the operation",
        ),
    ),
    Cause(
        "overflow_in_half_precision",
        "values exceed the range of half precision",
        "float16 ends at 65504: larger activations or scaled gradients become infinite.",
        (
            "Use bfloat16 instead of float16",
            "Let a GradScaler choose the loss scale",
            "Keep the layer in question in float32",
        ),
    ),
    Cause(
        "poisoned_weights",
        "the weights were already NaN or infinite before this step",
        "An earlier update put non-finite values into the weights; every layer that runs now only passes them on.",
        (
            "Go back to the last finite checkpoint; look at the gradients of the step that wrote these weights",
            "Skip updates whose gradients are not finite",
        ),
    ),
    Cause(
        "detached_parameters",
        "parameters are not reached by the training",
        "The optimizer does not hold them, or no gradient reaches them (detach, no_grad, a branch that is not used).",
        (
            "Build the optimizer from model.parameters() after the last change of the model",
            "Look for detach(), no_grad() or .data between these parameters and the loss",
            "If they are meant to be frozen, set requires_grad=False",
        ),
        "TrainCheck (Jiang et al., OSDI 2025)",
    ),
    Cause(
        "nothing_to_learn",
        "the inputs say nothing about the targets",
        "Gradients and updates are healthy but the loss does not fall: labels that do not belong to the inputs, a "
        "target that is constant, or an input that arrives blank.",
        (
            "Try to overfit one batch: if that fails, look at the model and the loss; if it works, at the data",
            "Check that inputs and labels are shuffled together",
        ),
    ),
)  # fmt: skip

#: All causes by identifier.
CAUSES: dict[str, Cause] = {cause.id: cause for cause in _CAUSES}

#: Symptom, then cause and weight, for all symptoms that the built-in rules report.
_TABLE: dict[str, dict[str, float]] = {
    # A value is NaN or infinite: where it began.
    "nonfinite_input": {"bad_data": 0.97},
    "nonfinite_weights": {"poisoned_weights": 0.6, "learning_rate_too_high": 0.3},
    "nonfinite_forward": {"overflow_in_module": 0.6, "learning_rate_too_high": 0.4},
    "nonfinite_loss": {"overflow_in_loss": 0.3, "learning_rate_too_high": 0.3, "bad_data": 0.1},
    "nonfinite_loss_only": {"overflow_in_loss": 0.8, "learning_rate_too_high": 0.2},
    "nonfinite_backward": {"overflow_in_backward": 0.7, "learning_rate_too_high": 0.3},
    "nonfinite_half_precision": {"overflow_in_half_precision": 0.7},
    "nonfinite_validation": {"overflow_in_loss": 0.5, "bad_data": 0.4},
    # ... and what led there.
    "rose_before": {
        "learning_rate_too_high": 0.9, "bad_data": -0.6, "overflow_in_loss": -0.6, "overflow_in_module": -0.6,
        "overflow_in_backward": -0.6, "poisoned_weights": -0.6,
    },
    "calm_before": {"learning_rate_too_high": -0.6},
    "first_step": {"learning_rate_too_high": -0.8, "poor_initialization_scale": 0.3, "bad_data": 0.3},
    # Growth.
    "gradient_growth": {"learning_rate_too_high": 0.7, "poor_initialization_scale": 0.2},
    "gradient_huge": {"learning_rate_too_high": 0.4, "poor_initialization_scale": 0.3},
    "loss_diverged": {"learning_rate_too_high": 0.8},
    "loss_rising": {"learning_rate_too_high": 0.6},
    "update_ratio_large": {"learning_rate_too_high": 0.6, "dying_relu": 0.2},
    "update_ratio_extreme": {"learning_rate_too_high": 0.8, "dying_relu": 0.2},
    # Nothing arrives, nothing moves.
    "vanishing_over_depth": {"vanishing_over_depth": 0.7, "deep_saturating_activations": 0.4},
    "saturating_modules_between": {"deep_saturating_activations": 0.95, "vanishing_over_depth": -0.5},
    "vanishing_everywhere": {
        "vanishing_over_depth": 0.4, "deep_saturating_activations": 0.3, "dying_relu": 0.3,
        "identical_initialization": 0.2, "poor_initialization_scale": 0.3,
    },
    "gradients_exactly_zero": {"dying_relu": 0.6, "identical_initialization": 0.3, "detached_parameters": 0.4},
    "dead_units": {"dying_relu": 0.93, "learning_rate_too_high": 0.3, "identical_initialization": 0.3},
    "all_units_dead": {"dying_relu": 0.6, "learning_rate_too_high": 0.2, "identical_initialization": 0.3},
    "loss_flat": {
        "nothing_to_learn": 0.4, "learning_rate_too_low": 0.3, "vanishing_over_depth": 0.3,
        "deep_saturating_activations": 0.3, "dying_relu": 0.3, "identical_initialization": 0.3,
        "poor_initialization_scale": 0.2, "learning_rate_too_high": 0.2, "detached_parameters": 0.2,
    },
    "update_ratio_small": {
        "learning_rate_too_low": 0.8, "vanishing_over_depth": 0.3, "deep_saturating_activations": 0.3,
        "dying_relu": 0.2, "identical_initialization": 0.1,
    },
    "parameter_unchanged": {
        "detached_parameters": 0.6, "dying_relu": 0.3, "deep_saturating_activations": 0.3,
        "vanishing_over_depth": 0.3, "identical_initialization": 0.2, "learning_rate_too_low": 0.1,
    },
    "no_gradient": {"detached_parameters": 0.8},
    "nothing_moves": {"learning_rate_too_low": 0.6, "detached_parameters": 0.5},
    # The start.
    "identical_rows": {"identical_initialization": 0.99},
    "weight_scale": {"poor_initialization_scale": 0.85},
    "activations_over_depth": {"poor_initialization_scale": 0.6, "identical_initialization": 0.2},
    # Generalisation.
    "validation_rises": {"overfitting": 0.95},
}  # fmt: skip

_STANDSTILL = frozenset({
    "gradients_exactly_zero", "vanishing_over_depth", "vanishing_everywhere", "update_ratio_small",
    "parameter_unchanged", "loss_flat", "nothing_moves",
})  # fmt: skip

#: What a cause leads to later on without being told by it: such findings join its chain and do not change its rank.
CONSEQUENCES: dict[str, frozenset[str]] = {
    "learning_rate_too_high": _STANDSTILL | {"dead_units", "all_units_dead", "loss_rising", "loss_diverged"},
    "poor_initialization_scale": _STANDSTILL | {"dead_units", "all_units_dead", "update_ratio_large"},
    "identical_initialization": _STANDSTILL | {"dead_units", "all_units_dead"},
    "deep_saturating_activations": _STANDSTILL,
    "vanishing_over_depth": _STANDSTILL,
    "dying_relu": _STANDSTILL,
    "learning_rate_too_low": _STANDSTILL,
    "detached_parameters": _STANDSTILL,
}

#: The same as rows, for readers and extensions.
LINKS: tuple[Link, ...] = tuple(
    Link(symptom, cause, weight) for symptom, row in _TABLE.items() for cause, weight in row.items()
)

#: Sentences that need numbers from the findings' evidence, put before a cause's own advice where all are known.
CONCRETE_ADVICE: dict[str, tuple[str, ...]] = {
    "learning_rate_too_high": ("Learning rate {learning_rate:.3g} with {optimizer}: try {lower_learning_rate:g}",),
    "learning_rate_too_low": ("Learning rate {learning_rate:.3g} with {optimizer}: try {higher_learning_rate:g}",),
    "overfitting": ("The validation loss was lowest at training step {best_step}: use the checkpoint from there",),
    "dying_relu": ("Use LeakyReLU, GELU or SiLU after {layer}",),
    "deep_saturating_activations": ("Replace the {saturating} activations of the hidden layers by ReLU, GELU or SiLU",),
}


def links_of(symptoms: Iterable[str]) -> dict[str, float]:
    """What symptoms say of each cause, as added log odds: 0 for nothing, 3 for 0.95.

    Weights of independent symptoms combine as noisy-or (Pearl 1988, 4.3): the support of a cause is the sum of
    ``-log(1 - weight)``, then shrunk by ``1 + weight`` for each symptom that speaks against it. A symptom counts once.
    """
    support: dict[str, float] = {}
    against: dict[str, float] = {}
    for symptom in dict.fromkeys(symptoms):
        for cause, weight in _TABLE.get(symptom, {}).items():
            if weight > 0:
                support[cause] = support.get(cause, 0.0) - math.log1p(-weight)
            else:
                against[cause] = against.get(cause, 1.0) * (1.0 + weight)
    return {cause: odds * against.get(cause, 1.0) for cause, odds in support.items()}


def likely(symptoms: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """Identifiers of the causes that these symptoms speak for, most likely first."""
    support = links_of(symptoms)
    return tuple(sorted(support, key=lambda cause: -support[cause])[:most])
