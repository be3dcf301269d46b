"""Models whose tensors were examined at too few steps: what rules about tensors did not find there says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watchglass.records import FEWEST_EXAMINED, Mode, ModelSummary, RuleStatus, Status, count
from watchglass.rules import BUILT_IN, find_rule

#: Models that are named in a status.
_MOST_NAMED = 3


def with_hardly_examined(statuses: Sequence[RuleStatus], models: Sequence[ModelSummary]) -> tuple[RuleStatus, ...]:
    """Statuses in which a rule about tensors that found nothing names the models for which that says nothing."""
    few = [each for each in models if each.hardly_examined]
    if not few:
        return tuple(statuses)
    named = [f"{each.name} at {each.examined_steps:,} of {each.train_steps:,}" for each in few[:_MOST_NAMED]]
    more = f" and {count(len(few) - _MOST_NAMED, 'further model')}" if len(few) > _MOST_NAMED else ""
    which = "a model" if len(few) == 1 else "models"
    reason = (
        f"says nothing about {which} examined at fewer than {FEWEST_EXAMINED} training steps: {', '.join(named)}{more}"
    )
    return tuple(
        replace(each, reason=reason)
        if each.status is Status.NO_ISSUES_FOUND and not each.reason and _looks_at_tensors(each.rule)
        else each
        for each in statuses
    )


def _looks_at_tensors(rule: str) -> bool:
    """Whether a built-in rule needs tensors of training steps."""
    needs = find_rule(rule).needs if rule in BUILT_IN else ()
    return any(need.of_tensors and not need.optional and Mode.TRAIN in need.modes for need in needs)
