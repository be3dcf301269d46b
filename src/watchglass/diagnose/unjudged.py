"""Why a run without findings is not called healthy: too little of it could be judged. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from watchglass.capture import FRAMEWORKS
from watchglass.diagnose.capture_faults import capture_fault
from watchglass.records import (
    FEWEST_EXAMINED,
    MOST_MODELS,
    Mode,
    ModelSummary,
    RuleStatus,
    Sighting,
    Status,
    count,
    facts,
)
from watchglass.rules import BUILT_IN, Needs, find_rule
from watchglass.run import Run, count_steps_of, leaders_of, sighting_of

#: If at least this share of the applicable rules has no data, too little was judged.
_STARVED_SHARE = 0.5
#: TRAIN steps below which the course of a run cannot be judged.
_FEWEST_STEPS = 2
#: If no hook reported at least this share of the updates, the optimizer that rules know is not the one that trains.
_BYPASSED_SHARE = 0.25
#: What evaluates them.
_CHECK = "; `watchglass check` evaluates them"


def why_unjudged(
    run: Run,
    statuses: Sequence[RuleStatus],
    bypassed: Sequence[facts.BypassedUpdates] = (),
    models: Sequence[ModelSummary] = (),
    *,
    evaluated: bool = True,
) -> str:
    """Why a run without findings is not known to be healthy, as a sentence without full stop; "" if enough was judged.

    Rules that do not apply to the run do not count, and neither do built-in rules that check a single observation of
    the script: without it they have no data, but the loss and the tensors are judged. A run whose training loss was
    never recorded is not known to be healthy, even if rules judged other data. Nor is one with a model whose tensors
    were examined at too few steps, whatever rules found of its other models.

    Args:
        run: The run, as far as it was read.
        statuses: Statuses of its rules.
        bypassed: Optimizer steps of its workers that bypassed hooks.
        models: Its models, of whose steps the overhead budget chose those that are examined.
        evaluated: Whether its rules were evaluated as far as the run goes.
    """
    steps = max(count_steps_of(run.worker(name), Mode.TRAIN) for name in leaders_of(run))
    unstepped = _unstepped(run)
    if unstepped is not None and unstepped.backwards >= steps:  # most of the loop was not understood
        return f"backward ran {_times(unstepped.backwards)} and {unstepped.reason}"
    if steps < _FEWEST_STEPS and (hidden := run.facts(facts.HiddenSteps.KIND)):
        return hidden[-1].source
    if steps < _FEWEST_STEPS and (fault := capture_fault(run)):
        return fault
    if not steps:
        return f"no training step was recorded{_seen(sighting_of(run))}"
    if steps < _FEWEST_STEPS:
        return "only one training step was recorded, too few to judge the run"
    if not statuses:
        return f"its rules have not been evaluated{_CHECK}"
    if not evaluated:
        return f"its rules have not been evaluated to the end{_CHECK}"
    for past in bypassed:
        total = count_steps_of(run.worker(past.worker), Mode.TRAIN)
        if past.steps is not None and past.steps >= _BYPASSED_SHARE * total:
            return f"no hook of PyTorch reported {past.steps:,} of {total:,} updates: {past.reason}"
    applicable = [each for each in statuses if each.status is not Status.NOT_APPLICABLE and _counts(each.rule)]
    starved = [each for each in applicable if each.status is Status.STARVED]
    few = _hardly_examined(models) if any(need.of_tensors for each in starved for need in _required(each.rule)) else ""
    if few:
        return few
    lossless = any(_follows_the_loss(each.rule) for each in starved)
    if starved and (lossless or len(starved) >= _STARVED_SHARE * len(applicable)):
        return f"{_of(len(starved), len(applicable))} had no data: {_why(starved)}"
    return ""


def _hardly_examined(models: Sequence[ModelSummary]) -> str:
    """The models that rules about tensors could not judge; none where the run has no tensors at all."""
    few = [each for each in models if each.hardly_examined or each.model >= MOST_MODELS]
    if not few or not any(each.examined_steps for each in models):
        return ""
    first = few[0]
    seen = f"at {first.examined_steps or 0:,} of {first.train_steps:,} training steps"
    if len(models) == 1:
        return f"tensors were examined {seen}, fewer than {FEWEST_EXAMINED}"
    also = f", and {len(few) - 1:,} more" if len(few) > 1 else ""
    many = f"{len(few):,} of {count(len(models), 'model')} could not be judged"
    return f"{many}: {first.name} was examined {seen}{also}"


def _counts(rule: str) -> bool:
    """Whether a rule judges the course of the run, and not a single observation of the script."""
    needs = _required(rule)
    return not needs or any(not need.facts for need in needs)


def _follows_the_loss(rule: str) -> bool:
    """Whether a built-in rule needs nothing but the training loss: a run without any cannot be called healthy."""
    needs = _required(rule)
    return bool(needs) and all(need.scalars == ("loss",) and need.modes == (Mode.TRAIN,) for need in needs)


def _required(rule: str) -> list[Needs]:
    """The required needs of a built-in rule; none for other rules, whose needs are unknown here."""
    return [need for need in find_rule(rule).needs if not need.optional] if rule in BUILT_IN else []


def _unstepped(run: Run) -> facts.UnsteppedBackwards | None:
    """The worst report of the workers."""
    last = (each for worker in run.workers for each in run.facts(facts.UnsteppedBackwards, worker)[-1:])
    return max(last, key=lambda each: each.backwards, default=None)


def _seen(sighting: Sighting | None) -> str:
    """What was seen instead of a training step."""
    if sighting is None:
        return ""
    driving = [name for name, entry in FRAMEWORKS.items() if entry.drives]
    names = [name for name in driving if name in sighting.frameworks]
    if not names:
        return f": the script imported no framework that is watched ({', '.join(driving)})"
    imported = f": {' and '.join(names)} {'was' if len(names) == 1 else 'were'} imported"
    if sighting.backwards:
        return f"{imported}, backward ran {_times(sighting.backwards)}, and no update was observed"
    adds = [f"for {name}, {FRAMEWORKS[name].add}" for name in names if FRAMEWORKS[name].add]
    if not any(FRAMEWORKS[name].discovers for name in names):
        return f"{imported}, which is not watched by itself: {FRAMEWORKS[names[0]].add}"
    return "; ".join([f"{imported}, and no backward was observed", *adds])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _of(part: int, whole: int) -> str:
    if part == whole:
        return "the only rule that applies" if whole == 1 else f"all {whole} rules that apply"
    return f"{part} of {whole} rules that apply"


def _why(starved: Sequence[RuleStatus]) -> str:
    """The reason of the first rule, because a headline has room for one; all reasons follow below it."""
    first = starved[0]
    more = f", and {len(starved) - 1} more" if len(starved) > 1 else ""
    return f"{first.rule} ({first.reason or 'no reason given'}){more}"
