"""The batches of spikes: their hashes, whether one made a spike before, and their places in the data loader."""

from __future__ import annotations

from typing import Any

from watchglass.records import Mode
from watchglass.tables import StepView

#: Batches of spikes that are remembered, and elements of a batch that must differ for its hash to mean anything.
_MOST, _VARIED = 64, 8


def follow_loader(view: StepView, loader: dict[str, Any]) -> None:
    """Keep in ``loader`` the data loader that the run takes its batches from, if their order follows from the steps.

    That is the only one that the first step begins to iterate over. At each captured step the number of its epochs must
    be the one that results if each step takes one batch; else it is dropped for good.
    """
    if view.mode is not Mode.TRAIN:
        return
    first = loader.setdefault("first", view.model_step)
    if view.model_step == first:
        known = [fact.data for fact in view.facts("data_loader")]
        if len(known) == 1 and known[0].get("batches"):
            loader.update({name: known[0].get(name) for name in ("loader", "batches", "batch_size", "sampler")})
    if not (captured := _batches(view)) or "batches" not in loader:
        return
    epoch = (view.model_step - first) // loader["batches"] + 1
    if len(captured) == 1 and captured[0].get("iterations", {}).get(loader["loader"]) == epoch:
        loader["checked"] = True
    else:
        del loader["batches"]


def batch_words(view: StepView, before: dict[str, int], loader: dict[str, Any]) -> str:
    """What is known of the batch of a spike, as the end of a sentence; "" where nothing is.

    Args:
        view: The step of the spike.
        before: The steps of the latest spikes by the hash of their batch; this one is added.
        loader: What :func:`follow_loader` has kept.
    """
    return _hash_words(view, before) + _place_words(view, loader)


def _batches(view: StepView) -> list[Any]:
    """What was recorded of the batches of this step, those at the start of an epoch left out."""
    return [fact.data for fact in view.facts("batch") if "workers" not in fact.data]


def _place_words(view: StepView, loader: dict[str, Any]) -> str:
    if "batches" not in loader or "checked" not in loader:
        return ""
    epoch, number = divmod(view.model_step - loader["first"], loader["batches"])
    words = f"; if each step takes one batch, its batch is number {number} of epoch {epoch} of the data loader (from 0)"
    if loader["sampler"] == "SequentialSampler" and loader["batch_size"]:
        words += f", which begins with sample {number * loader['batch_size']} of the data set"
    return words


def _hash_words(view: StepView, before: dict[str, int]) -> str:
    facts = _batches(view)
    if not facts or any(data.get("varied", 0) < _VARIED for data in facts):
        return ""
    name = "+".join(str(each) for data in facts for each in data.get("hashes", ()))
    earlier = before.get(name)
    if earlier is None:
        while len(before) >= _MOST:
            del before[next(iter(before))]
        before[name] = view.mode_step
    if earlier is None or earlier == view.mode_step:
        return f"; its batch has the hash {name}"
    return f"; its batch, of hash {name}, is the same as at the spike of step {earlier}"
