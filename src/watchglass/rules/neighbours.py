"""What samples with similar inputs say of a task and of a model: see ``neighbours`` of the fact ``output_sketch``.

Where neighbours have similar targets, the inputs say something about the targets, whatever the model makes of them.
Where the errors of neighbours are alike in the end, the model has not learned what its inputs tell: errors of one that
has learned it are noise. The reverse proves nothing, because pixels and tokens of samples of one kind can be far apart.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from watchglass.tables import StepView

#: Sketches and rows of them all together from which on neighbours count.
_SKETCHES, _ROWS = 2, 64
#: Agreement that counts, and by how many standard errors it must be above zero.
_AGREE, _CERTAIN = 0.2, 4.0

#: Of each sketch: rows, agreement of targets, agreement of errors.
Compared = list[list[float]]


def remember(compared: Compared, view: StepView) -> None:
    """Append the sketches of a step, in place."""
    for fact in view.facts("output_sketch"):
        found: Any = fact.data.get("neighbours")
        if found and fact.data.get("number") == 1:
            compared.append([found["rows"], found["targets"], found["errors"]])


def targets_agree(compared: Compared) -> float | None:
    """How alike the targets of neighbours are, 0..1, over the whole run; None where they are not for certain."""
    return _certain(compared, 1)


def symptoms(compared: Compared) -> tuple[str, ...]:
    """What it adds to a finding about a model that learns nothing."""
    symptom_ids = []
    if targets_agree(compared) is not None:
        symptom_ids.append("targets_follow_inputs")
    return tuple(symptom_ids)


def errors_agree(compared: Compared) -> float | None:
    """How alike the errors of neighbours are in the last third of the sketches; None where they are not for certain."""
    return _certain(compared[-max(_SKETCHES, len(compared) // 3) :], 2)


def _certain(compared: Compared, column: int) -> float | None:
    if len(compared) < _SKETCHES:
        return None
    table = np.asarray(compared)
    rows, values = table[:, 0], table[:, column]
    mean = float(np.average(values, weights=rows))
    # Of n pairs that have nothing in common the mean product has about this error, and no less if sketches differ more.
    scatter = math.sqrt(float(np.average((values - mean) ** 2, weights=rows)) / (len(values) - 1))
    error = max(1 / math.sqrt(rows.sum()), scatter)
    return mean if rows.sum() >= _ROWS and mean > _AGREE and mean > _CERTAIN * error else None
