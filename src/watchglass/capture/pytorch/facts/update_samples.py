"""Fact ``update_sample``: what updates do to weights, from some elements of each parameter."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from watchglass.capture.facts.update_samples import ELEMENTS, SampledParameter, UpdateSamples, chosen, settings_of
from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.pytorch.events import Update
from watchglass.capture.pytorch.facts.copies import Copies, some
from watchglass.capture.pytorch.saving.reduce import name_of
from watchglass.capture.pytorch.tensors.optimizer_state import holder_of
from watchglass.record import DeferredFact
from watchglass.records import facts

#: Optimizers of a process that are sampled: some scripts have one for each parameter.
_MOST_OPTIMIZERS = 8
#: Second moments in an optimizer's state, the one that divides first; those that are corrected for their start.
_BIAS_CORRECTED = ("max_exp_avg_sq", "exp_avg_sq")
_MOMENTS = (*_BIAS_CORRECTED, "square_avg", "sum")
#: Optimizers of PyTorch that decouple the decay although their groups have no setting for it.
_DECOUPLED = (AdamW, *(kind for name in ("Adafactor", "Muon") if (kind := getattr(torch.optim, name, None))))


@dataclass
class _Taken:
    """Copies for one sample: of each parameter some elements, in the order in which they were taken."""

    step: int
    rows: list[tuple[weakref.ref[Tensor], ParameterPlace, int, Tensor, Tensor]]
    scale: Any


class UpdateSampleFact:
    """Copies some elements of weights, gradients and second moments around a captured update, now and then."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Optimizer, UpdateSamples] = weakref.WeakKeyDictionary()
        self._taken: tuple[Callable[[], Optimizer | None], _Taken] | None = None

    def update_began(self, update: Update) -> None:
        """Gradients are final, weights as they were."""
        self._taken = None
        sampled = self._due(update)
        if sampled is None:
            return
        groups = {id(p): index for index, group in enumerate(update.optimizer.param_groups) for p in group["params"]}
        rows = []
        trained = [row for row in update.parameters if row[0].requires_grad]
        for index in chosen([row[0].dim() for row in trained]):
            parameter, _, place = trained[index]
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
        since = sampled.took(taken.step)
        state: Mapping[Any, Any] = holder_of(update.optimizer).state
        copies = Copies()
        groups = [_settings(update.optimizer, group, copies) for group in update.optimizer.param_groups]
        rows = []
        for reference, place, group, before, gradient in taken.rows:
            parameter = reference()
            after = some(parameter, ELEMENTS)
            if parameter is None or after is None or after.numel() != before.numel():
                continue
            moment, step = _moment_of(state.get(parameter))
            moment = moment if moment is not None and moment.numel() == before.numel() else None
            rows.append(
                SampledParameter(
                    place, parameter.dim(), name_of(parameter.dtype), group,
                    copies.add(before), copies.add(gradient), copies.add(after),
                    *(None if each is None else copies.add(each) for each in (moment, step)),
                )
            )  # fmt: skip
        scale = copies.add(taken.scale.reshape(1)) if isinstance(taken.scale, Tensor) else taken.scale
        copies.send()
        make = functools.partial(sampled.sample, since, groups, rows, scale)
        update.step.records.add_fact(DeferredFact(facts.UpdateSample, make), type(update.optimizer).__name__)

    #: Lines of the script do the same without an optimizer.
    script_update_began, script_update_ended = update_began, update_ended

    def _due(self, update: Update) -> UpdateSamples | None:
        """The samples of the optimizer, where one is due."""
        step = update.step.mode_step
        sampled = self._known.get(update.optimizer)
        if sampled is None and len(self._known) < _MOST_OPTIMIZERS:
            sampled = self._known[update.optimizer] = UpdateSamples(type(update.optimizer).__name__, step)
        return sampled if sampled is not None and sampled.due(step) else None


def _moment_of(state: Any) -> tuple[Tensor | None, Tensor | None]:
    """Elements of the second moment in the state of a parameter; the count of updates that corrects it, if any does."""
    if not isinstance(state, Mapping):
        return None, None
    for key in _MOMENTS:
        value = state.get(key)
        if isinstance(value, Tensor):
            step = state.get("step") if key in _BIAS_CORRECTED else None
            if isinstance(step, (int, float)):
                step = torch.tensor([float(step)])
            return some(value, ELEMENTS), step.detach().reshape(-1)[:1] if isinstance(step, Tensor) else None
    return None, None


def _settings(optimizer: Optimizer, group: Mapping[str, Any], copies: Copies) -> tuple[facts.UpdateGroup, Any]:
    """Settings of a group, and the place of a learning rate that is a tensor."""
    settings = settings_of(group, decoupled=isinstance(optimizer, _DECOUPLED))
    rate = group.get("lr")
    return settings, copies.add(rate.detach().reshape(-1)[:1]) if isinstance(rate, Tensor) else None
