"""The number of updates before this process: by the optimizer's counter, else by its scheduler's.

Read once, at the first update of a process. In a run from the start there is nothing to read: optimizers have no state
before their first step.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, SequentialLR

from watchglass.capture.process.resumption import Resumption
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import parameters_of

#: Schedulers that are meant to be stepped at every update, by PyTorch's own documentation. All others may count epochs.
_PER_UPDATE = (OneCycleLR, CyclicLR)
#: What these keep in an optimizer's groups (of the latter if it cycles momentum), and others do not: only then is it
#: worth looking for them.
_SIGNS = frozenset(("max_lr", "max_momentum", "base_momentum"))


def settle_start(optimizer: Optimizer, models: Models, resumption: Resumption) -> None:
    """Settle at which step a training run begins whose first update is about to be made.

    What counts is the optimizer's counter: Adam's ``step`` and what others call so, of the parameter that has most.
    Where it has none, the counter of its scheduler counts if that is stepped at every update. Several optimizers may
    update together or take turns: only if all are about to update is the answer known.

    Args:
        optimizer: Makes the first update.
        models: The models that are watched.
        resumption: Gets the result, also where nothing was found.
    """
    try:
        _settle(optimizer, models, resumption)
    except Exception:  # an optimizer may keep anything under the name of a counter
        resumption.settle(None, "optimizer")


def _settle(optimizer: Optimizer, models: Models, resumption: Resumption) -> None:
    here, there, counts = _counters(optimizer)
    if not counts:
        resumption.settle(_scheduled(optimizer), "scheduler")
        return
    if not (there or any(here)):
        resumption.settle(0, "optimizer")  # it counts, and has not begun
        return
    others = _others(optimizer)
    if others and not (models.only_root() is not None and all(map(_is_about_to_update, others))):
        resumption.settle(None, "optimizer")
        return
    if there:
        with torch.no_grad():
            coming = DeviceRows(torch.stack(there).max())
        resumption.settle_later(coming, "optimizer")
        if coming.here:
            resumption.look(last=True)
        return
    known = max(here)
    # Together from the beginning, or not at all: else steps of the one are none of the other.
    alike = all(max(_counters(other)[0], default=0) == known for other in others)
    resumption.settle(known if alike else None, "optimizer")


def _counters(optimizer: Optimizer) -> tuple[list[int], list[Tensor], bool]:
    """Counters on the host, those on one device, and whether there are any."""
    here: list[int] = []
    there: list[Tensor] = []
    for one in (optimizer, *_inside(optimizer)):
        for holder in (*one.state.values(), *one.param_groups):
            counter = holder.get("step") if isinstance(holder, dict) else None
            if isinstance(counter, Tensor):
                if hasattr(counter, "to_local"):
                    counter = counter.to_local()  # every rank has all of it, so no rank communicates
                if counter.numel() != 1 or counter.is_meta:
                    continue
                if counter.is_cpu:
                    here.append(int(counter))
                elif not there or there[0].device == counter.device:
                    there.append(counter.detach().reshape(()).float())
            elif isinstance(counter, (int, float)):
                here.append(int(counter))
    return here, there, bool(here or there)


def _inside(optimizer: Optimizer) -> list[Optimizer]:
    """Optimizers that one holds and calls: it has their parameters, they have the counters."""
    return [each for each in vars(optimizer).values() if isinstance(each, Optimizer) and each is not optimizer]


def _others(optimizer: Optimizer) -> list[Optimizer]:
    """Optimizers of other parameters, anywhere in this process. Looked for once, in resumed runs."""
    own = _identities(optimizer)

    def found() -> list[Optimizer]:
        theirs = [(each, _identities(each)) for each in _all(Optimizer) if each is not optimizer]
        return [each for each, identities in theirs if identities and not identities & own]

    if not found():
        return []
    # Optimizers and their schedulers hold each other: one that a notebook has replaced may still be here, unused.
    gc.collect()
    return found()


def living_optimizers() -> list[Optimizer]:
    """All optimizers of this process that have parameters. Looks at every object there is."""
    return [optimizer for optimizer in _all(Optimizer) if _parameters(optimizer)]


def optimizer_of(parameters: Iterable[Tensor]) -> Optimizer | None:
    """An optimizer of any of these parameters in this process; None for none. Looks at every object there is."""
    wanted = {id(parameter) for parameter in parameters}
    return next((each for each in _all(Optimizer) if not wanted.isdisjoint(_identities(each))), None)


def _is_about_to_update(optimizer: Optimizer) -> bool:
    """Whether any of its parameters has a gradient: at the first update of a process it is this step's."""
    return any(parameter.grad is not None for parameter in _parameters(optimizer))


def _scheduled(optimizer: Optimizer) -> int | None:
    if not any(_SIGNS & group.keys() for group in optimizer.param_groups):
        return None
    own = [each for each in _all(LRScheduler) if getattr(each, "optimizer", None) is optimizer]
    if any(isinstance(each, SequentialLR) for each in own):
        return None  # those in it begin to count when their turn comes
    counts = {each.last_epoch for each in own if isinstance(each, _PER_UPDATE) and type(each.last_epoch) is int}
    return counts.pop() if len(counts) == 1 else None


def _all(kind: type[Any]) -> Iterator[Any]:
    return (each for each in gc.get_objects() if issubclass(type(each), kind))


def _identities(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for parameter in _parameters(optimizer)}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    try:
        return parameters_of(optimizer)
    except Exception:  # half made, or a class of the user
        return []
