"""The parts of a run that cannot affect each other: models that were trained one after the other, or apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from watchglass.records import Finding, Mode
from watchglass.run import Run, Worker, leaders_of


class _Part(NamedTuple):
    """Models that were trained in turns or together, as the two of a GAN."""

    models: frozenset[int]  #: Their numbers.
    first: int  #: Their first global step of training.
    last: int  #: Their last one.


class PartsOfRun:
    """The part that a finding is about: of the workers that train together, the models whose steps overlap."""

    def __init__(self, run: Run) -> None:
        leaders = leaders_of(run)
        self._parts = {name: _parts(run.worker(name)) for name in leaders}
        alone = [name for name in leaders if name is not None and run.worker(name).trains_alone]
        self._together = next((name for name in leaders if name not in alone), None)
        self._alone = frozenset(alone)

    def __call__(self, finding: Finding) -> tuple[str | None, int]:
        """The worker that stands for those that train together, and the number of the part among its parts.

        A finding about no model belongs to the part that was trained at its step.
        """
        leader = finding.worker if finding.worker in self._alone else self._together
        parts = self._parts.get(leader, [])
        own = (n for n, part in enumerate(parts) if finding.model in part.models)
        then = (n for n, part in enumerate(parts) if finding.global_step <= part.last)
        return leader, next(own, next(then, max(0, len(parts) - 1)))


def _parts(worker: Worker) -> list[_Part]:
    course = worker.columns
    train = course[course["mode"] == Mode.TRAIN]
    order = np.argsort(train["model"], kind="stable")
    models, starts = np.unique(train["model"][order], return_index=True)
    spans = [] if not len(models) else zip(
        models.tolist(),
        np.minimum.reduceat(train["number"][order], starts).tolist(),
        np.maximum.reduceat(train["number"][order], starts).tolist(),
        strict=True,
    )  # fmt: skip
    parts: list[_Part] = []
    for model, first, last in sorted(spans, key=lambda span: span[1]):
        if parts and first <= parts[-1].last:
            before = parts.pop()
            parts.append(_Part(before.models | {model}, before.first, max(before.last, last)))
        else:
            parts.append(_Part(frozenset({model}), first, last))
    return parts
