"""Reading parameters at the update point: gradients, weights, exact updates, norms, learning rates."""

from __future__ import annotations

import functools
import time
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.facts.initial_weights import initialization
from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.port import Port
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import described, parameters_of, type_name
from watchglass.capture.pytorch.saving.norm_interval import NormInterval
from watchglass.capture.pytorch.saving.reduce import is_plain, plain, share_threads, summaries, symmetry_of, version_of
from watchglass.capture.saving.parameters import LateGradients, Parameters, items_of
from watchglass.capture.saving.saving import Saving
from watchglass.config import chosen_facts
from watchglass.record import CapturedRecords, DeferredFact, OpenStep
from watchglass.records import Role, facts
from watchglass.stats import Rows

_Parameters = list[tuple[Tensor, str, ParameterPlace]]


class _Known:
    """The parameters of an optimizer, with data that is the same at every step."""

    __slots__ = ("ids", "items", "models", "numbers", "rows")

    def __init__(self, optimizer: Optimizer, models: int, rows: _Parameters) -> None:
        self.ids = list(map(id, parameters_of(optimizer)))  #: Identities of all its parameters.
        self.models = models  #: How often a model had been added.
        self.numbers = {row[2].place.model or 0 for row in rows}  #: Of the models that have any of them.
        self.rows = rows  #: Those that belong to a known model.
        self.items = items_of(rows)  #: The same as items to be saved.


class ParameterReader:
    """Reads the parameters of an optimizer before and after its step."""

    def __init__(self, port: Port, models: Models, saving: Saving) -> None:
        self._port = port
        self._saved = Parameters(port, saving)
        self._models = models
        self._known: weakref.WeakKeyDictionary[Optimizer, _Known] = weakref.WeakKeyDictionary()
        self._stale: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self.updates = self._saved.updates  #: Of the weights that were read last.
        #: How often the total gradient norm is taken in addition to captured steps.
        self.norm_pace = NormInterval(port.plan, port.limits.norm_share, port.limits.norm_interval)
        self._described: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # Models of which an optimizer has been described.
        self._initialized: set[int] = set()

    def parameters(self, optimizer: Optimizer) -> _Parameters:
        """An optimizer's parameters that belong to a known model, with names."""
        return self._known_of(optimizer).rows

    def models_of(self, optimizer: Optimizer) -> set[int]:
        """Numbers of the models that an optimizer has parameters of."""
        return self._known_of(optimizer).numbers

    def _known_of(self, optimizer: Optimizer, *, again: bool = False) -> _Known:
        # Looked up once, and again after a change: each call compares their number, and with ``again`` (at captured
        # steps) their identities.
        known = self._known.get(optimizer)
        if known is not None and known.models == self._models.additions:
            if again:
                # Their modules may have been found since where some had none.
                if len(known.rows) == len(known.ids) and list(map(id, parameters_of(optimizer))) == known.ids:
                    return known
            elif len(known.ids) == sum(len(group["params"]) for group in optimizer.param_groups):
                return known
        known = self._known[optimizer] = _Known(optimizer, self._models.additions, self._resolved(optimizer))
        return known

    def look_again(self, optimizer: Optimizer) -> None:
        """Forget the parameters of an optimizer: they were replaced."""
        self._known.pop(optimizer, None)

    def _resolved(self, optimizer: Optimizer) -> _Parameters:
        parameters = parameters_of(optimizer)
        self._models.trained(parameters)
        places = [self._models.parameter(parameter) for parameter in parameters]
        if None in places:
            # Replaced or materialised since the trees were read, or another model's.
            self._models.refresh()
            self._models.trained(parameters)
            places = [self._models.parameter(parameter) for parameter in parameters]
        return [(p, place.name, place) for p, place in zip(parameters, places, strict=True) if place is not None]

    def begin(self) -> None:
        """A captured step begins: remember the gradients that are there, which are older than it."""
        share_threads()
        self._stale.clear()
        for tree in self._models:
            for parameter in tree.parameters():
                gradient = parameter.grad
                if gradient is not None:
                    self._stale[id(parameter)] = (weakref.ref(gradient), version_of(gradient))

    def trust(self) -> None:
        """Take every gradient for this step's: it was opened after its backward, so none is known to be older."""
        self._stale.clear()

    def fresh_gradients(self, optimizer: Optimizer, due: bool) -> _Parameters:
        """``(gradient, parameter's name, place)`` of gradients that this step's backward produced."""
        # At a captured step the parameters have just been looked up.
        rows, stale = self._known_of(optimizer).rows, self._stale if due else {}
        found = []
        for parameter, name, place in rows:
            gradient = parameter.grad
            if gradient is None:
                continue
            known = stale.get(id(parameter))
            if known is None or known[0]() is not gradient or known[1] != version_of(gradient):
                found.append((gradient, name, place))
        return found

    def gradients(self, step: OpenStep, fresh: _Parameters, scale: Any) -> Rows | None:
        """Record statistics of gradients; returns their rows where there is one for each of ``fresh`` on the host.

        Args:
            step: The step.
            fresh: This step's gradients.
            scale: Factor of a scaler, or None.
        """
        rows = self._saved.gradients(step.records, fresh, scale)
        return rows if isinstance(rows, np.ndarray) else None

    def weights(self, step: OpenStep, optimizer: Optimizer) -> None:
        """Record statistics of weights before the update, and copy those whose update is to be recorded."""
        known = self._known_of(optimizer, again=True)
        self._saved.before_update(step.records, optimizer, known.rows, known.items, lambda each: each.requires_grad)

    def norm(
        self, records: CapturedRecords, fresh: _Parameters, scale: Any, known: Rows | None = None, model: int = 0
    ) -> list[str] | LateGradients:
        """Record the total gradient norm; returns the names of non-finite gradients, in order of the model.

        On a device nothing is waited for here, so there the names come late.

        Args:
            records: Where to.
            fresh: Gradients with names.
            scale: Factor of a scaler, or None.
            known: Their rows of statistics, already divided by the scale, where they have been read.
            model: Number of the model whose norm it is.
        """
        started = time.perf_counter_ns()
        names = [row[1] for row in fresh]
        sharded = any(type(row[0]) is not Tensor and hasattr(row[0], "to_local") for row in fresh)
        if known is not None:
            table = known
        else:
            found = [(value, name) for gradient, name, _ in fresh if (value := self._value(gradient)) is not None]
            if not found:
                return []
            gradients, names = [value for value, _ in found], [name for _, name in found]
            if any(not gradient.is_cpu for gradient in gradients):
                return self._norm_on_device(records, gradients, names, scale, sharded, model)
            table = summaries(gradients, scale=scale, histograms=False)[0]
        bad = self._saved.norm(records, table, names, sharded=sharded, model=model)
        self.norm_pace.took(time.perf_counter_ns() - started)
        return bad

    def _value(self, gradient: Tensor) -> Tensor | None:
        """A gradient as the kernel, or its device, can read it; None where its values cannot be read."""
        if is_plain(gradient):
            return gradient
        try:
            return plain(gradient)
        except RuntimeError:
            return None

    def _norm_on_device(
        self, records: CapturedRecords, gradients: list[Tensor], names: list[str], scale: Any, sharded: bool, model: int
    ) -> LateGradients:
        """:meth:`norm` where gradients are on one or more devices, and also on the CPU."""
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for index, gradient in enumerate(gradients):
            groups.setdefault((gradient.device, gradient.dtype), []).append(index)
        norms = []
        for (device, dtype), indices in groups.items():
            there = [gradients[index] for index in indices]
            # Half precision leaves two digits, and in float16 the sum of squares of finite gradients overflows.
            wider = torch.float32 if dtype in (torch.float16, torch.bfloat16) else None
            norm = torch.stack(torch._foreach_norm(there, 2, wider)).float()
            total = torch.linalg.vector_norm(norm)
            self._saved.add_norm(
                records, DeviceRows(total if scale is None else total / scale.to(device)), sharded, model
            )
            norms.append((DeviceRows(norm), indices))
        return LateGradients(norms, names)

    def quick_norm(self, optimizer: Optimizer, records: CapturedRecords) -> bool:
        """Record the norm of a step that is not open; False where a gradient is not finite."""
        with torch.no_grad():
            model = min(self.models_of(optimizer), default=0)
            fresh = self.fresh_gradients(optimizer, False)
            bad = self.norm(records, fresh, None, model=model)
        return isinstance(bad, LateGradients) or not bad

    def learning_rates(self, step: OpenStep, optimizer: Optimizer, offset: int, several: bool) -> None:
        """Record each group's learning rate; one that lives on a device is read back without a wait."""
        groups = optimizer.param_groups
        if not several and len(groups) == 1 and type(groups[0].get("lr")) is float:
            self._port.add_scalar(step.records, "learning_rate", groups[0]["lr"], Role.METRIC)
            return
        for index, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if rate is None:
                continue
            if isinstance(rate, Tensor):
                rate = DeviceRows(rate.detach().reshape(()).float()) if rate.device.type != "cpu" else float(rate)
            name = f"learning_rate/{offset + index}" if several or len(optimizer.param_groups) > 1 else "learning_rate"
            self._port.add_scalar(step.records, name, rate, Role.METRIC)

    def describe(self, step: OpenStep, optimizer: Optimizer, model: int) -> None:
        """Record an optimizer's settings and models, once; its weights' initialization where the step is captured."""
        if optimizer in self._described:
            return
        self._described.add(optimizer)
        groups = tuple(
            {key: value for key, value in group.items() if isinstance(value, (int, float, bool, str))}
            for group in optimizer.param_groups
        )
        about = self._models.in_facts(model)
        name = type(optimizer).__name__
        if isinstance(optimizer, Optimizer):  # lines of the script that update have no settings
            step.records.add_fact(facts.OptimizerSettings(name, groups, about), name)
        models = self.models_of(optimizer)
        new, self._initialized = models - self._initialized, self._initialized | models
        wanted = facts.Initialization.KIND in chosen_facts(self._port.config.facts)
        if wanted and step.due and (step.mode_step == 0 or (new and 0 not in models)):
            with torch.no_grad():
                weights = {
                    name: (tuple(weight.shape), symmetry_of(weight))
                    for weight, name, _ in self.parameters(optimizer)
                    if weight.dim() > 1
                }
            fact = DeferredFact(facts.Initialization, functools.partial(initialization, weights, about))
            step.records.add_fact(fact, "first update")
        for tree in self._models if about is not None else ():
            if tree.number in new and tree.owner is not None:
                about_model = replace(described((tree,)), roots=(type_name(tree.owner),), model=tree.number)
                step.records.add_fact(about_model, "first update")
