"""Facts of losses for tests of rules: what a step with these outputs and targets would record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from watchglass.capture.arrays import Elements
from watchglass.capture.facts.input_sketches import Correlations, Sample
from watchglass.capture.facts.judged_sketches import LossRows
from watchglass.records import Mode
from watchglass.testing import Step

Facts = dict[str, dict[str, Any]]
#: Outputs and targets of a step.
Batch = Callable[[int, np.random.Generator], tuple[Any, Any]]


def sample(values: Any, path: str = "0") -> Sample:
    """A small tensor as it is sampled: whole."""
    array = np.ascontiguousarray(values)
    array = array.astype(np.int64 if array.dtype.kind in "iub" else np.float32)
    return Sample(path, array.shape, str(array.dtype), array.size, Elements(array))


def judged(function: str, outputs: Any, targets: Any, **settings: Any) -> Facts:
    """The sketches of a loss: of classes where the targets are integers."""
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    by_class = function in ("cross_entropy", "nll_loss")
    rows = outputs.reshape(len(outputs), -1)
    made = LossRows(
        function, 1, by_class, outputs.shape, targets.shape, rows.shape[1], sample(rows),
        sample(targets.reshape(len(targets), -1)), ignored=-100 if by_class else None, settings=settings,
    )  # fmt: skip
    found = {"output_sketch": made.output_sketch(), "target_sketch": made.target_sketch()}
    return {kind: sketch.to_data() for kind, sketch in found.items() if sketch is not None}


def given(inputs: Any, correlations: Correlations | None = None, into: tuple[str, ...] = ("linear",)) -> Facts:
    """The sketch of an input."""
    sketch = sample(inputs).sketch(correlations)
    return {"input_sketch": {**(sketch.to_data() if sketch else {}), "into": list(into)}}


def steps(
    number: int,
    batch: Batch,
    function: str = "cross_entropy",
    *,
    loss: Callable[[int], float] = lambda step: 1.0,
    every: int = 1,
    inputs: Callable[[int, np.random.Generator], Any] | None = None,
    scalars: Mapping[str, float] | None = None,
    mode: Mode = Mode.TRAIN,
) -> list[Step]:
    """Steps with a loss, of which every so many is sketched."""
    random, correlations, made = np.random.default_rng(5), Correlations(), []
    for step in range(number):
        value = loss(step)
        values = {"loss": value, "learning_rate": 0.1, f"loss/{function}": value, **(scalars or {})}
        outputs, targets = batch(step, random)
        facts = {} if step % every else judged(function, outputs, targets)
        if inputs is not None and not step % every:
            facts |= given(inputs(step, random), correlations)
        made.append(Step(scalars=values, facts=facts, mode=mode, weight=float(len(outputs))))
    return made
