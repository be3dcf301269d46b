"""How many samples an update has, where recorded facts make that clear."""

from __future__ import annotations

from typing import Any

from watchglass.records import ModuleKind, facts
from watchglass.rules import signals
from watchglass.rules.modern.call_rounds import rounds_of
from watchglass.tables import StepView


def follow_batches(view: StepView, known: dict[str, Any]) -> None:
    """Keep in ``known`` what later steps need; to be called at every step.

    Args:
        view: The step.
        known: ``backwards`` of an update, and ``batch_sizes`` of the data loaders.
    """
    for calls in view.facts(facts.Calls):
        rounds = rounds_of(calls)
        if rounds:
            known["backwards"] = max(rounds, key=lambda each: each.times).calls.count("backward")
    for loader in view.facts(facts.LoaderSettings):
        if loader.batch_size is not None:
            known["batch_sizes"] = sorted({*known.get("batch_sizes", ()), loader.batch_size})


def samples_of_update(view: StepView, known: dict[str, Any]) -> int | None:
    """Samples of the update of this step on its worker, those of all micro-batches; None where they are not clear.

    The first axis of the model's first input counts them. With recurrent layers, and with inputs of one axis, it may
    be another one, and counts only where a data loader makes batches of that size.
    """
    shapes = [batch.shape for batch in view.facts(facts.BatchInputs) if not batch.of_epoch]
    if not shapes or not all(shapes):
        return None
    sizes = [int(shape[0]) for shape in shapes]
    recurrent = any(kind == ModuleKind.RECURRENT.value for kind, _ in signals.modules(view).values())
    if (recurrent or min(map(len, shapes)) < 2) and not set(sizes) <= set(known.get("batch_sizes", ())):
        return None
    backwards = known.get("backwards", 1)
    if len(sizes) == backwards:
        return sum(sizes)
    # One backward for several forwards, of pairs for example, or several losses of one forward.
    return sizes[0] if 1 in (len(sizes), backwards) and len(set(sizes)) == 1 else None
