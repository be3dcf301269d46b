"""What samples with similar inputs show about a task: see ``neighbours`` of the fact ``output_sketch``.

Where neighbours have similar targets, the inputs carry information about the targets, independent of the model. The
reverse proves nothing, because pixels and tokens of samples of one kind can be far apart.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from watchglass.records import facts
from watchglass.rules import guessing
from watchglass.tables import StepView

#: Sketches and rows of them all together from which on neighbours count.
_SKETCHES, _ROWS = 2, 64
#: Sketches whose scatter is known well enough.
_MANY = 8
#: Agreement that counts, and by how many standard errors it must be above zero.
_AGREE, _CERTAIN = 0.2, 4.0
#: Agreement of errors from which on a model does not use a part of the information in its inputs.
_LEFT_OUT = 0.3

#: Of each sketch: rows, agreement of targets, agreement of errors, variance of targets (0 for classes), model step.
Compared = list[list[float]]


def remember(compared: Compared, view: StepView) -> None:
    """Append the sketches of a step, in place."""
    for sketch in view.facts(facts.OutputSketch):
        found = sketch.neighbours
        if found is not None and sketch.number == 1:
            rows, spread = sketch.rows, sketch.constant_error or 0.0
            variance = spread * rows / (rows - 1) if rows > 1 else 0.0
            compared.append([found.rows, found.targets, found.errors, variance, view.model_step])


def targets_agree(compared: Compared) -> float | None:
    """How alike the targets of neighbours are, 0..1, over the whole run; None where they are not for certain."""
    return _certain(compared, 1)


def errors_agree(compared: Compared, since: int) -> float | None:
    """How alike the errors of neighbours are from a step on, 0..1; None where they are not for certain.

    If they are alike, the inputs carry information about the errors, so a better model has smaller ones.
    """
    mean = _certain([each for each in compared if each[4] >= since], 2)
    return mean if mean is not None and mean >= _LEFT_OUT else None


def symptoms(compared: Compared) -> tuple[str, ...]:
    """What it adds to a finding about a model that learns nothing."""
    return () if targets_agree(compared) is None else ("targets_follow_inputs",)


def loss_of_lookup(compared: Compared, pool: guessing.Pool) -> float | None:
    """The loss of a prediction that knows the targets of the most similar sample of the same batch and nothing else.

    This is no strict bound, but a model that has seen many batches should have a smaller loss. For classes it follows
    from how often neighbours are of one class; for values its error is ``1 - agreement ** 2`` of the variance.

    Args:
        compared: Sketches of the run.
        pool: Targets of its only loss.

    Returns:
        None where neighbours do not agree, or the loss is another one than the mean of a known function.
    """
    mean = targets_agree(compared)
    if mean is None or pool.get("smoothing") or pool.get("weighted") or pool.get("positive_weight", 1.0) != 1.0:
        return None
    # What is known of it for certain.
    agree = mean - 2 * _error(np.asarray(compared), 1)
    shares = guessing.shares_of(pool)
    if shares is not None:
        alike = sum(share * share for share in shares)
        same = alike + agree * (1 - alike)
        return -same * math.log(same) - (1 - same) * math.log((1 - same) / (len(shares) - 1)) if same < 1 else 0.0
    variances = [each[3] for each in compared if each[3] > 0]
    if pool["function"] != "mse_loss" or not variances:
        return None
    return (1 - agree**2) * float(np.mean(variances))


def _certain(compared: Compared, column: int) -> float | None:
    if len(compared) < _SKETCHES:
        return None
    table = np.asarray(compared)
    mean = float(np.average(table[:, column], weights=table[:, 0]))
    enough = table[:, 0].sum() >= _ROWS and mean > _AGREE
    return mean if enough and mean > _CERTAIN * _error(table, column) else None


def _error(table: NDArray[np.float64], column: int) -> float:
    """Standard error of the mean: from the scatter of sketches, of few at least that of pairs that differ at random."""
    rows, values = table[:, 0], table[:, column]
    apart = (values - np.average(values, weights=rows)) ** 2
    scatter = math.sqrt(float(np.average(apart, weights=rows)) / (len(values) - 1))
    return scatter if len(values) >= _MANY else max(1 / math.sqrt(float(rows.sum())), scatter)
