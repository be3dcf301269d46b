"""Fact ``clip`` and metric ``gradient_norm_before_clip`` of compiled steps."""

from __future__ import annotations

import functools
from typing import Any

from watchglass.capture.arrays import number_of
from watchglass.capture.compiled.collecting import Updater, ValuePart
from watchglass.capture.compiled.reading import ByPart
from watchglass.capture.facts.clips import NORM_BEFORE_CLIP, Clippings
from watchglass.capture.port import Port
from watchglass.record import CapturedRecords, DeferredFact
from watchglass.records import Role, facts


class ClipFacts:
    """Makes both at captured steps. For the training thread.

    Args:
        port: Where they go.
        source: The source of facts.
    """

    def __init__(self, port: Port, source: str) -> None:
        self._port, self._source = port, source
        self._clippings = Clippings()  # for the recorder's thread

    def save(
        self, records: CapturedRecords, found: ByPart, model: int, updater: Updater | None, norm: Any
    ) -> None:  # fmt: skip
        """Add the facts about the gradients of a model.

        Args:
            records: Those of the step.
            found: Its values.
            model: Number of the model.
            updater: What has updated it; None where that is not known.
            norm: The norm of the gradients that it got, a number that may come later; None where it is not known.
        """
        for what, value in found.get(ValuePart.CLIPPED, ()):
            if what.model == model and what.clip is not None:
                self._add(records, what.clip, model, number_of(value))
        for clip in () if updater is None else updater.clips:
            of_all = clip.max_norm is not None and clip.norm_of is None
            self._add(records, clip, model, norm if of_all else None)

    def _add(self, records: CapturedRecords, clip: facts.Clip, model: int, norm: Any) -> None:
        if norm is not None:
            self._port.add_scalar(records, NORM_BEFORE_CLIP, norm, Role.METRIC, model=model)
        make = functools.partial(self._counted, clip, model, norm)
        records.add_fact(DeferredFact(facts.Clip, make), self._source)

    def _counted(self, clip: facts.Clip, model: int, norm: Any) -> facts.Clip | None:
        number = norm.resolve() if hasattr(norm, "resolve") else norm
        first = self._clippings.called((clip, model), lambda: clip, None if number is None else float(number))
        return first or next(self._clippings.due(), None)
