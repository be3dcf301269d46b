"""The batches of spikes: their hashes, and whether one made a spike before."""

from __future__ import annotations

from watchglass.tables import StepView

#: Batches of spikes that are remembered, and elements of a batch that must differ for its hash to mean anything.
_MOST, _VARIED = 64, 8


def batch_words(view: StepView, before: dict[str, int]) -> str:
    """What is known of the batch of a spike, as the end of a sentence; "" where its hash was not recorded.

    Args:
        view: The step of the spike.
        before: The steps of the latest spikes by the hash of their batch; this one is added.
    """
    facts = [fact.data for fact in view.facts("batch") if "workers" not in fact.data]
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
