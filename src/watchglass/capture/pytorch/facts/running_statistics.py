"""Fact ``running_statistics``: whether the running statistics of normalisation follow what it normalises."""

from __future__ import annotations

import functools
import math
import weakref

import torch
from torch import Tensor, nn

from watchglass.capture.facts.running_moments import CHANNELS, ELEMENTS, MOST, RunningMoments
from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.pytorch.events import ForwardCall, ModuleCall
from watchglass.capture.pytorch.facts.copies import Copies, some
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import type_name
from watchglass.record import CapturedRecords, DeferredFact
from watchglass.records import Mode, facts


class RunningStatistics:
    """Reads buffers ``running_mean`` and ``running_var`` of modules, and moments of what these modules get.

    At the 1st, 2nd, 4th, 8th ... captured training forward, and at the beginning of such evaluations.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._counts = dict.fromkeys(Mode, 0)
        # Of the forward that runs: the inputs' means and variances by module.
        self._inputs: dict[nn.Module, tuple[Tensor, Tensor] | None] | None = None
        self._has = weakref.WeakKeyDictionary[nn.Module, bool]()
        self._running = RunningMoments()
        #: An entry of :attr:`Events.module_listeners`.
        self.module_listeners = (self._listens, self._called)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        self._inputs = None
        if call.step.mode is Mode.TRAIN and self._has_any(call.root) and self._due(Mode.TRAIN):
            self._inputs = {}

    def evaluation_began(self, call: ForwardCall) -> None:
        """The first forward of an evaluation is about to run."""
        # Models without a number only help to train others, or are not trained yet: nothing is recorded of them.
        if call.forward.model >= 0 and self._has_any(call.root) and self._due(Mode.EVAL):
            self._record(call.forward.records, call.root, dict.fromkeys(_tracking(call.root)))

    def forward_ended(self, call: ForwardCall) -> None:
        """The captured forward has ended."""
        inputs, self._inputs = self._inputs, None
        if inputs:
            self._record(call.forward.records, call.root, inputs)

    def _listens(self) -> bool:
        # Called before or after the forward that begins has been counted.
        count = self._counts[Mode.TRAIN]
        return is_power_of_two(count) or is_power_of_two(count + 1)

    def _has_any(self, root: nn.Module) -> bool:
        known = self._has.get(root)
        if known is None:
            known = self._has[root] = any(True for _ in _tracking(root))
        return known

    def _due(self, mode: Mode) -> bool:
        self._counts[mode] += 1
        return is_power_of_two(self._counts[mode])

    def _called(self, call: ModuleCall) -> None:
        if self._inputs is not None and _buffers(call.module) is not None and len(self._inputs) < MOST:
            first = call.arguments[0] if call.arguments else None
            self._inputs[call.module] = _moments(first) if isinstance(first, Tensor) else None

    def _record(
        self, records: CapturedRecords, root: nn.Module, inputs: dict[nn.Module, tuple[Tensor, Tensor] | None]
    ) -> None:
        copies, rows = Copies(), []
        for module, moments in list(inputs.items())[:MOST]:
            place, buffers = self._models.module(module), _buffers(module)
            if place is None or buffers is None:
                continue
            mean, variance = (some(buffer, CHANNELS) for buffer in buffers)
            if mean is None or variance is None:
                continue
            batches = getattr(module, "num_batches_tracked", None)
            momentum = getattr(module, "momentum", None)
            of_input = (None, None) if moments is None else tuple(some(each, CHANNELS) for each in moments)
            comparable = all(each is not None and each.numel() == mean.numel() for each in of_input)
            known = float(momentum) if isinstance(momentum, (int, float)) else None
            about = facts.NormalizationState(place.path, type_name(module), module.training, known)
            count = batches.detach().reshape(-1)[:1].clone() if isinstance(batches, Tensor) else None
            given = (mean, variance, *(of_input if comparable else (None, None)), count)
            rows.append((about, [None if each is None else copies.add(each) for each in given]))
        if rows:
            copies.send()
            make = functools.partial(self._running.fact, root.training, rows)
            records.add_fact(DeferredFact(facts.NormalizationStatistics, make), "forward")


def _tracking(root: nn.Module) -> list[nn.Module]:
    return [module for module in root.modules() if _buffers(module) is not None]


def _buffers(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Running mean and variance of a module of any class; None without them."""
    buffers = dict(module.named_buffers(recurse=False))
    mean, variance = buffers.get("running_mean"), buffers.get("running_var")
    return (mean, variance) if isinstance(mean, Tensor) and isinstance(variance, Tensor) else None


def _moments(values: Tensor) -> tuple[Tensor, Tensor] | None:
    """Means and variances of some of what a normalisation gets, by channel; None where there is nothing to compare."""
    values = values.detach()
    if values.dim() < 2 or not values.is_floating_point() or values.layout is not torch.strided or not values.numel():
        return None
    over = [axis for axis in range(values.dim()) if axis != 1]
    room = values.numel() / ELEMENTS
    if room > 1:
        # A stride along each axis except that of the channels.
        stride = math.ceil(room ** (1 / len(over)))
        values = values[tuple(slice(None, None, stride if axis in over else 1) for axis in range(values.dim()))]
    if values.numel() <= values.shape[1]:
        return None
    variance, mean = torch.var_mean(values.float(), dim=over, unbiased=False)
    return mean, variance
