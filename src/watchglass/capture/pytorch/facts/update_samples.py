"""Fact ``update_sample``: what updates do to weights, from some elements of each parameter."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.pytorch.events import Update
from watchglass.capture.pytorch.facts.copies import Copies, some
from watchglass.capture.pytorch.tensors.optimizer_state import holder_of
from watchglass.capture.update_samples import (
    ELEMENTS,
    SampledParameter,
    UpdateSamples,
    chosen,
    next_after,
    settings_of,
)
from watchglass.record import DeferredFact
from watchglass.records import facts

#: Optimizers of a process that are sampled: some scripts have one for each parameter.
_MOST_OPTIMIZERS = 8
#: Second moments in an optimizer's state, the one that divides first.
_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
#: Optimizers of PyTorch that decouple the decay although their groups have no setting for it.
_DECOUPLED = (AdamW, *(kind for name in ("Adafactor", "Muon") if (kind := getattr(torch.optim, name, None))))
_BIAS_CORRECTED = "exp_avg_sq"


@dataclass(eq=False)
class _Sampled:
    """One optimizer whose updates are sampled."""

    computed: UpdateSamples
    first: int
    next: int
    last: int | None = None
    #: Number of its parameters, and which of them are sampled.
    size: int = -1
    indices: list[int] = field(default_factory=list)


@dataclass
class _Taken:
    """Copies for one sample: of each parameter some elements, in the order in which they were taken."""

    step: int
    rows: list[tuple[weakref.ref[Tensor], ParameterPlace, int, Tensor, Tensor]]
    scale: Any


class UpdateSampleFact:
    """Copies some elements of weights, gradients and second moments around a captured update, now and then."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Optimizer, _Sampled] = weakref.WeakKeyDictionary()
        self._taken: tuple[Callable[[], Optimizer | None], _Taken] | None = None

    def update_began(self, update: Update) -> None:
        """Gradients are final, weights as they were."""
        self._taken = None
        sampled = self._due(update)
        if sampled is None:
            return
        groups = {id(p): index for index, group in enumerate(update.optimizer.param_groups) for p in group["params"]}
        rows = []
        for index in sampled.indices:
            parameter, _, place = update.parameters[index]
            before, gradient = some(parameter, ELEMENTS), some(parameter.grad, ELEMENTS)
            if before is not None and gradient is not None and before.numel() == gradient.numel():
                rows.append((weakref.ref(parameter), place, groups.get(id(parameter), 0), before, gradient))
        if rows:
            self._taken = weakref.ref(update.optimizer), _Taken(update.step.mode_step, rows, update.scale)

    def update_ended(self, update: Update) -> None:
        """The weights have changed."""
        pending, self._taken = self._taken, None
        sampled = self._known.get(update.optimizer)
        if pending is None or sampled is None or pending[0]() is not update.optimizer:
            return
        taken = pending[1]
        if taken.step != update.step.mode_step:
            return
        since = None if sampled.last is None else taken.step - sampled.last
        sampled.last, sampled.next = taken.step, next_after(sampled.first, taken.step)
        state: Mapping[Any, Any] = holder_of(update.optimizer).state
        copies = Copies()
        groups = [_settings(update.optimizer, group, copies) for group in update.optimizer.param_groups]
        rows = []
        for reference, place, group, before, gradient in taken.rows:
            parameter = reference()
            after = some(parameter, ELEMENTS)
            if parameter is None or after is None or after.numel() != before.numel():
                continue
            key, moment, step = _moment_of(state.get(parameter))
            moment = moment if moment is not None and moment.numel() == before.numel() else None
            places = tuple(
                None if values is None else copies.add(values) for values in (before, gradient, after, moment, step)
            )
            where, dtype = place.place, str(parameter.dtype).removeprefix("torch.")
            about = SampledParameter(place.name, where.index, where.kind.value, parameter.dim(), dtype, group, *_NONE)
            rows.append((about, places, key == _BIAS_CORRECTED or key == f"max_{_BIAS_CORRECTED}"))
        scale = copies.add(taken.scale.reshape(1)) if isinstance(taken.scale, Tensor) else taken.scale
        copies.send()
        make = functools.partial(_sample, sampled.computed, since, groups, rows, copies, scale)
        update.step.records.add_fact(DeferredFact(facts.UpdateSample, make), type(update.optimizer).__name__)

    #: Lines of the script do the same without an optimizer.
    script_update_began, script_update_ended = update_began, update_ended

    def _due(self, update: Update) -> _Sampled | None:
        """The optimizer, where a sample of it is due and it has parameters to sample."""
        step = update.step.mode_step
        sampled = self._known.get(update.optimizer)
        if sampled is None:
            if len(self._known) >= _MOST_OPTIMIZERS:
                return None
            computed = UpdateSamples(type(update.optimizer).__name__)
            sampled = self._known[update.optimizer] = _Sampled(computed, step, step)
        if step < sampled.next:
            return None
        if len(update.parameters) != sampled.size:
            sampled.size = len(update.parameters)
            trained = [index for index, row in enumerate(update.parameters) if row[0].requires_grad]
            places = chosen([update.parameters[index][0].dim() for index in trained])
            sampled.indices = [trained[place] for place in places]
        return sampled


_NONE = (np.empty(0), np.empty(0), np.empty(0))


def _sample(
    computed: UpdateSamples, since: int | None, groups: list[tuple[facts.UpdateGroup, Any]], rows: list[Any],
    copies: Copies, scale: Any,
) -> facts.UpdateSample:  # fmt: skip
    values = copies.values()

    def number(place: Any) -> float | None:
        return float(values[place][0]) if isinstance(place, tuple) else place

    divisor = number(scale) or 1.0
    settings = [group if rate is None else replace(group, lr=number(rate)) for group, rate in groups]
    parameters = []
    for about, (before, gradient, after, moment, step), corrected in rows:
        parameters.append(
            replace(
                about, before=values[before], gradient=values[gradient] / divisor, after=values[after],
                moment=None if moment is None else values[moment],
                step=float(values[step][0]) if corrected and step is not None else None,
            )
        )  # fmt: skip
    return computed.sample(since, settings, parameters)


def _moment_of(state: Any) -> tuple[str, Tensor | None, Tensor | None]:
    """Name and elements of the second moment in the state of a parameter, and the count of its updates."""
    if not isinstance(state, Mapping):
        return "", None, None
    for key in _MOMENTS:
        value = state.get(key)
        if isinstance(value, Tensor):
            step = state.get("step")
            if isinstance(step, (int, float)):
                step = torch.tensor([float(step)])
            return key, some(value, ELEMENTS), step.detach().reshape(-1)[:1] if isinstance(step, Tensor) else None
    return "", None, None


def _settings(optimizer: Optimizer, group: Mapping[str, Any], copies: Copies) -> tuple[facts.UpdateGroup, Any]:
    """Settings of a group, and the place of a learning rate that is a tensor."""
    settings = settings_of(group, decoupled=isinstance(optimizer, _DECOUPLED))
    rate = group.get("lr")
    return settings, copies.add(rate.detach().reshape(-1)[:1]) if isinstance(rate, Tensor) else None
