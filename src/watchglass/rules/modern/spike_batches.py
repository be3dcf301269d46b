"""The batches of spikes: their hashes, whether one made a spike before, and their places in the data loader."""

from __future__ import annotations

from typing import Any

from watchglass.records import Mode, facts
from watchglass.tables import StepView

#: Batches of spikes that are remembered, and elements of a batch that must differ for its hash to mean anything.
_MOST, _VARIED = 64, 8
#: Ways to accumulate gradients over batches: over the end of an epoch; with a shorter last step in each; or with the
#: batches that are left over at the end of an epoch in the first step of the next one.
_WAYS = ("on", "short", "left over")


def follow_loader(view: StepView, loader: dict[str, Any]) -> None:
    """Keep in ``loader`` the data loader that the run takes its batches from, if their order follows from the steps.

    That is the only one that the first step begins to iterate over. At each captured step the number of its epochs must
    be the one that results if each forward takes one batch, for all forwards of the step. Else it is dropped for good.
    """
    if view.mode is not Mode.TRAIN:
        return
    first = loader.setdefault("first", view.model_step)
    if view.model_step == first:
        known = view.facts(facts.LoaderSettings)
        if len(known) == 1 and known[0].batches:
            loader.update({name: getattr(known[0], name) for name in ("loader", "batches", "batch_size", "sampler")})
    if not (captured := _batches(view)) or "batches" not in loader:
        return
    loader.setdefault("per_step", len(captured))
    epochs = [(batch.iterations or {}).get(loader["loader"]) for batch in captured]
    at = view.model_step - first
    ways = [
        way
        for way in loader.get("ways", _WAYS)
        if [epoch + 1 for epoch, _ in _places(way, at, loader["batches"], loader["per_step"])] == epochs
    ]
    if ways:
        loader["ways"] = ways
    else:
        del loader["batches"]


def batch_words(view: StepView, before: dict[str, int], loader: dict[str, Any]) -> str:
    """What is known of the batches of a spike, as the end of a sentence; "" where nothing is.

    Args:
        view: The step of the spike.
        before: The steps of the latest spikes by the hash of their batches, or by their numbers in an epoch where each
            epoch has the same batches; this one is added.
        loader: What :func:`follow_loader` has kept.
    """
    return _hash_words(view, before) + _place_words(view, before, loader)


def _batches(view: StepView) -> list[facts.BatchInputs]:
    """What was recorded of the batches of this step, those at the start of an epoch left out."""
    return [batch for batch in view.facts(facts.BatchInputs) if not batch.of_epoch]


def _places(way: str, step: int, batches: int, per_step: int) -> list[tuple[int, int]]:
    """Epoch and number of each batch of a step, both from 0."""
    if way == "on":
        return [divmod(step * per_step + each, batches) for each in range(per_step)]
    whole, rest = divmod(batches, per_step)
    per_epoch = whole + (1 if rest and way == "short" else 0)
    if not per_epoch:
        return []
    epoch, at = divmod(step, per_epoch)
    left = range(whole * per_step, batches) if way == "left over" and at == 0 and epoch else ()
    own = range(at * per_step, min(batches, (at + 1) * per_step))
    return [*((epoch - 1, number) for number in left), *((epoch, number) for number in own)]


def _place_words(view: StepView, before: dict[str, int], loader: dict[str, Any]) -> str:
    if "batches" not in loader or "ways" not in loader:
        return ""
    step, batches, per_step = view.model_step - loader["first"], loader["batches"], loader["per_step"]
    possible = [_places(way, step, batches, per_step) for way in loader["ways"]]
    places = possible[0]
    if not places or any(other != places for other in possible):
        return ""
    (epoch, number), (last_epoch, last) = places[0], places[-1]
    if len(places) == 1:
        words = f"; if each step takes one batch, its batch is number {number}"
    else:
        words = f"; if each forward takes one batch, its batches are numbers {number}"
        words += f" to {last}" if epoch == last_epoch else f" of epoch {epoch} to {last}"
    words += f" of epoch {last_epoch} of the data loader (from 0)"
    return words + (_fetching(view, before, loader, epoch, number, last) if epoch == last_epoch else "")


def _fetching(
    view: StepView, before: dict[str, int], loader: dict[str, Any], epoch: int, number: int, last: int
) -> str:  # fmt: skip
    """How to get these batches of an epoch once more, and at which step they made a spike before."""
    size, these = loader["batch_size"], f"{number}" if number == last else f"{number}:{last + 1}"
    if loader["sampler"] == "SequentialSampler" and size:
        earlier = _remembered(view, before, f"numbers {number} to {last}")
        again = "" if earlier is None else f", as at the spike of step {earlier}"
        begin, end = number * size, (last + 1) * size
        return (
            f", which {'begins' if number == last else 'begin'} with sample {begin} of the data set{again}; to fetch "
            f"{'it' if number == last else 'them'}: [loader.dataset[i] for i in range({begin}, {end})]"
        )
    if loader["sampler"] == "DistributedSampler":
        return (
            f"; to fetch the numbers of its samples on this rank: list(loader.batch_sampler)[{these}], after "
            f"sampler.set_epoch({epoch}) if the script sets the epoch, from 0"
        )
    return (
        f"; to fetch {'it' if number == last else 'them'}: make and seed the loader as the script does, and take "
        f"list(loader)[{these}] in its epoch {epoch}"
    )


def _hash_words(view: StepView, before: dict[str, int]) -> str:
    batches = _batches(view)
    if not batches or any(batch.varied < _VARIED for batch in batches):
        return ""
    name = "+".join(each for batch in batches for each in batch.hashes)
    earlier = _remembered(view, before, name)
    if earlier is None:
        return f"; its batch has the hash {name}"
    return f"; its batch, of hash {name}, is the same as at the spike of step {earlier}"


def _remembered(view: StepView, before: dict[str, int], name: str) -> int | None:
    """The earlier step of a spike with these batches; None for none, and then this step is remembered."""
    earlier = before.get(name)
    if earlier is None:
        while len(before) >= _MOST:
            del before[next(iter(before))]
        before[name] = view.mode_step
    return None if earlier == view.mode_step else earlier
