"""At how many steps the tensors of each model were examined: where these are too few, finding nothing says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchglass.evaluate.engine.rule_status import Examined, ExaminedKey, WorkerFacts
from watchglass.records import FEWEST_EXAMINED, Mode, count, model_name
from watchglass.store import layout
from watchglass.tables import JointStep

#: Models that are named in a status.
_MOST_NAMED = 3


def count_examined(examined: dict[ExaminedKey, Examined], step: JointStep) -> None:
    """Counts a step."""
    for view in step.views:
        if view.mode is Mode.TRAIN:
            key = (step.worker, view.worker, view.model)
            before = examined.get(key) or Examined()
            examined[key] = Examined(before.steps + view.covers, before.captured + view.has_capture)


def hardly_examined(examined: Mapping[ExaminedKey, Examined], facts: Sequence[WorkerFacts]) -> str:
    """Why a rule about tensors without findings starves: the models that were hardly examined; "" for none.

    Of workers that train together one may keep the tensors of all. A model to which the rule does not apply, or which
    it never saw, does not count. Of a run without any tensors the needs of the rule give the reason.

    Args:
        examined: The steps of each model.
        facts: The facts of the rule.
    """
    by_model: dict[tuple[str, int], Examined] = {}
    for (group, _, model), found in examined.items():
        most = by_model.get((group, model), found)
        by_model[group, model] = max(most, found, key=lambda each: each.captured)
    few = [(*key, found) for key, found in by_model.items() if found.hardly and _applies(facts, *key)]
    if not few or not any(found.captured for found in by_model.values()):
        return ""
    several = len(by_model) > 1
    few.sort(key=lambda row: (layout.worker_order(row[0]), row[1]))
    named = [
        (f" of {f'{group}: ' if group else ''}{model_name(model)}" if several else "")
        + f" ({found.captured:,} of {found.steps:,})"
        for group, model, found in few[:_MOST_NAMED]
    ]
    more = f" and of {count(len(few) - _MOST_NAMED, 'further model')}" if len(few) > _MOST_NAMED else ""
    return f"tensors were examined at fewer than {FEWEST_EXAMINED} training steps{','.join(named)}{more}"


def _applies(facts: Sequence[WorkerFacts], group: str, model: int) -> bool:
    own = [each for each in facts if each.model == model and group in ("", each.worker)]
    return any(not each.not_applicable for each in own)
