"""What is read at the update point: gradients, weights, the exact updates, norms, learning rates."""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.models import Models
from watchglass.capture.pytorch.modules import ParameterPlace
from watchglass.capture.pytorch.reduce import DeviceRows, plain, rows
from watchglass.record import OpenStep
from watchglass.records import STATISTIC_FIELDS, Role, TensorInfo

#: Share of the overhead budget that the total gradient norm may use, and its longest interval.
_NORM_SHARE, _NORM_MAX_INTERVAL = 0.25, 64
_MAX_NAMED = 32
_NONFINITE = [STATISTIC_FIELDS.index(name) for name in ("nan", "posinf", "neginf")]
_L2 = STATISTIC_FIELDS.index("l2")

_Parameters = list[tuple[Tensor, str, ParameterPlace]]


class Readings:
    """Reads what an optimizer is about to change and has changed."""

    def __init__(self, hook: Hook, models: Models) -> None:
        self._hook = hook
        self._models = models
        self._known: weakref.WeakKeyDictionary[Optimizer, tuple[int, int, _Parameters]] = weakref.WeakKeyDictionary()
        self._stale: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._before: list[tuple[Tensor, Tensor, str, ParameterPlace]] = []
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._group = 0
        self._norm_interval = 1
        self._norm_cost_ns = 0.0
        self._described: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def parameters(self, optimizer: Optimizer, *, again: bool = False) -> _Parameters:
        """An optimizer's parameters that belong to a known model, with names.

        Looked up once and again where ``again`` says so (at captured steps) or the groups have changed in size.
        """
        known = self._known.get(optimizer)
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if known is None or again or known[0] != count or known[1] != len(self._models):
            known = (count, len(self._models), self._resolved(optimizer))
            self._known[optimizer] = known
        return known[2]

    def _resolved(self, optimizer: Optimizer) -> _Parameters:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        places = [self._models.parameter(parameter) for parameter in parameters]
        if None in places:
            # Replaced or materialised since the trees were read, or another model's.
            self._models.refresh()
            places = [self._models.parameter(parameter) for parameter in parameters]
        return [(p, place.name, place) for p, place in zip(parameters, places, strict=True) if place is not None]

    def begin(self) -> None:
        """A captured step begins: remember the gradients that are there, which are older than it."""
        self._stale.clear()
        for tree in self._models:
            owner = tree.owner
            for parameter in owner.parameters() if owner is not None else ():
                gradient = parameter.grad
                if gradient is not None:
                    self._stale[id(parameter)] = (weakref.ref(gradient), gradient._version)

    def trust(self) -> None:
        """Take every gradient for this step's: it was opened after its backward, so none can be told to be older."""
        self._stale.clear()

    def fresh_gradients(self, optimizer: Optimizer, due: bool) -> list[tuple[Tensor, str, ParameterPlace]]:
        """``(gradient, parameter's name, place)`` of gradients that this step's backward produced."""
        found = []
        for parameter, name, place in self.parameters(optimizer, again=due):
            gradient = parameter.grad
            if gradient is None or (due and self._is_stale(parameter, gradient)):
                continue
            found.append((gradient, name, place))
        return found

    def _is_stale(self, parameter: Tensor, gradient: Tensor) -> bool:
        known = self._stale.get(id(parameter))
        return known is not None and known[0]() is gradient and known[1] == gradient._version

    def gradients(self, step: OpenStep, fresh: Sequence[tuple[Tensor, str, ParameterPlace]], scale: Any) -> None:
        """Record statistics of gradients; ``scale`` is what a scaler multiplied them with, or None."""
        kept = [(gradient, f"gradient/{name}", place) for gradient, name, place in fresh]
        self._save(step, [row for row in kept if self._hook.plan.keeps(row[1], Role.GRADIENT)], Role.GRADIENT, scale)

    def weights(self, step: OpenStep, optimizer: Optimizer) -> None:
        """Record statistics of weights before the update, and copy those whose update is to be recorded."""
        parameters = self.parameters(optimizer)
        weights = [row for row in parameters if row[2].leaf != "bias" and self._hook.plan.keeps(row[1], Role.WEIGHT)]
        biases = [row for row in parameters if row[2].leaf == "bias" and self._hook.plan.keeps(row[1], Role.BIAS)]
        self._save(step, weights, Role.WEIGHT)
        self._save(step, biases, Role.BIAS)
        if self._hook.plan.wants(Role.UPDATE):
            self._copy(row for row in parameters if row[0].requires_grad)

    def _copy(self, parameters: Iterable[tuple[Tensor, str, ParameterPlace]]) -> None:
        """Copies of weights, within the memory bound: groups of parameters take turns over captured steps."""
        groups: list[list[tuple[Tensor, str, ParameterPlace]]] = [[]]
        room = bound = self._hook.config.capture_memory_bytes
        for row in parameters:
            size = row[0].numel() * row[0].element_size()
            if size > bound or not self._hook.plan.keeps(f"update/{row[1]}", Role.UPDATE):
                continue
            if size > room:
                groups.append([])
                room = bound
            room -= size
            groups[-1].append(row)
        if len(groups) > 1:
            self._copies.clear()
        self._group = (self._group + 1) % len(groups)
        self._before = [
            (weight, self._copy_of(weight), f"update/{name}", place) for weight, name, place in groups[self._group]
        ]

    def _copy_of(self, weight: Tensor) -> Tensor:
        """A copy in memory that is used again at the next capture: fresh pages cost more than the copying."""
        known = self._copies.get(id(weight))
        if known is None or known[0]() is not weight or known[1].shape != weight.shape:
            known = (weakref.ref(weight), torch.empty_like(weight, requires_grad=False))
            self._copies[id(weight)] = known
        return known[1].copy_(weight.detach())

    def updated(self, step: OpenStep) -> None:
        """Record the exact updates, now that the optimizer has changed the weights."""
        before, self._before = self._before, []
        changes = [(torch.sub(weight.detach(), old, out=old), name, place) for weight, old, name, place in before]
        self._save(step, changes, Role.UPDATE)

    def forget(self) -> None:
        """Drop what was kept for an update that never came."""
        self._before = []

    def _save(
        self, step: OpenStep, tensors: Sequence[tuple[Tensor, str, ParameterPlace]], role: Role, scale: Any = None
    ) -> None:
        ids: list[int] = []
        values: list[Tensor] = []
        by_device: dict[torch.device, list[int]] = {}
        for tensor, name, place in tensors:
            value = plain(tensor)
            if value is None:
                continue
            by_device.setdefault(value.device, []).append(len(ids))
            ids.append(self._hook.tensor_id((role, name), functools.partial(_info, tensor, name, role, place)))
            values.append(value if scale is None else value / scale)
            if self._hook.plan.keeps_raw(name, role):
                step.records.raw.append((ids[-1], value.float().cpu().numpy().copy()))
        for chosen in by_device.values():
            step.records.statistics.append(
                ([ids[index] for index in chosen], rows([values[index] for index in chosen]), False)
            )

    def norm(self, step: OpenStep, fresh: Sequence[tuple[Tensor, str, ParameterPlace]], scale: Any) -> list[str]:
        """Record the total gradient norm; returns the names of non-finite gradients, in order of the model.

        On a device nothing is read back here, so no names are returned there.
        """
        started = time.perf_counter_ns()
        gradients = [row[0] for row in fresh]
        if any(gradient.layout is not torch.strided or hasattr(gradient, "to_local") for gradient in gradients):
            gradients = [value for value in map(plain, gradients) if value is not None]
        if not gradients:
            return []
        if gradients[0].device.type != "cpu":
            norms = torch.stack(torch._foreach_norm(gradients))
            total = torch.linalg.vector_norm(norms.float())
            value = DeviceRows(total if scale is None else total / scale)
            self._hook.add_scalar(step.records, "gradient_norm", value, Role.METRIC)
            return []
        table = rows(gradients)
        bad = [fresh[int(index)][1] for index in np.flatnonzero(table[:, _NONFINITE].any(axis=1))]
        nan = bool(table[:, _NONFINITE[0]].any())
        total_norm = (math.nan if nan else math.inf) if bad else float(np.linalg.norm(table[:, _L2]))
        self._hook.add_scalar(
            step.records, "gradient_norm", total_norm / (float(scale) if scale is not None else 1.0), Role.METRIC
        )
        self._pace(time.perf_counter_ns() - started)
        return bad

    def norm_due(self, step: OpenStep) -> bool:
        """Whether the total norm is affordable at this step; always at captured ones."""
        return step.due or step.mode_step % self._norm_interval == 0

    def _pace(self, cost_ns: int) -> None:
        """Choose how often the total norm is taken so that it costs at most its share of the budget."""
        self._norm_cost_ns += 0.1 * (cost_ns - self._norm_cost_ns)
        allowed_ns = _NORM_SHARE * self._hook.config.overhead_budget * self._hook.plan.budget.step_ns
        interval = 1
        while interval < _NORM_MAX_INTERVAL and self._norm_cost_ns / interval > allowed_ns:
            interval *= 2
        self._norm_interval = interval

    def learning_rates(self, step: OpenStep, optimizer: Optimizer, offset: int, several: bool) -> None:
        """Record each group's learning rate; one that lives on a device is read back without a wait."""
        groups = optimizer.param_groups
        if not several and len(groups) == 1 and type(groups[0].get("lr")) is float:
            self._hook.add_scalar(step.records, "learning_rate", groups[0]["lr"], Role.METRIC)
            return
        for index, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if rate is None:
                continue
            if isinstance(rate, Tensor):
                rate = DeviceRows(rate.detach().reshape(()).float()) if rate.device.type != "cpu" else float(rate)
            name = f"learning_rate/{offset + index}" if several or len(optimizer.param_groups) > 1 else "learning_rate"
            self._hook.add_scalar(step.records, name, rate, Role.METRIC)

    def describe(self, step: OpenStep, optimizer: Optimizer) -> None:
        """Record an optimizer's settings and its weights' initialization, once."""
        if optimizer in self._described:
            return
        self._described.add(optimizer)
        groups = [
            {key: value for key, value in group.items() if isinstance(value, (int, float, bool, str))}
            for group in optimizer.param_groups
        ]
        step.records.facts.append(
            ("optimizer", type(optimizer).__name__, {"type": type(optimizer).__name__, "groups": groups})
        )
        if step.mode_step == 0:
            tensors = {
                name: _initialization(weight) for weight, name, _ in self.parameters(optimizer) if weight.dim() > 1
            }
            step.records.facts.append(("initialization", "first update", {"tensors": tensors}))


def describe_bad(names: Sequence[str]) -> dict[str, Any]:
    """Data of a ``nonfinite_gradients`` fact: backward runs from the last layer to the first."""
    return {
        "tensors": [f"gradient/{name}" for name in names[-_MAX_NAMED:]],
        "count": len(names),
        "first_in_backward": f"gradient/{names[-1]}",
    }


def _info(tensor: Tensor, name: str, role: Role, place: ParameterPlace) -> TensorInfo:
    inner = place.place
    return TensorInfo(
        0, name, role, inner.path, inner.module_type, inner.index, tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."), 0 if tensor.dim() else None, True,
    )  # fmt: skip


def _initialization(weight: Tensor) -> dict[str, Any]:
    """Symmetry and spread of a weight as it was before the first update; large ones by their first rows."""
    values = plain(weight)
    shape = list(weight.shape)
    fan_out, rest = shape[0], int(np.prod(shape[2:], dtype=np.int64)) if len(shape) > 2 else 1
    result: dict[str, Any] = {"shape": shape, "fan_in": shape[1] * rest, "fan_out": fan_out * rest}
    if values is None or not values.numel():
        return result
    flat = values.reshape(fan_out, -1)[: max(2, (1 << 20) // max(1, values[0].numel()))]
    same = (flat == flat[0]).all(dim=1)
    identical = float(same[1:].float().mean()) if flat.shape[0] > 1 else 0.0
    spread = float(flat.float().std(unbiased=False))
    return {
        **result,
        "identical_rows": identical,
        "constant": bool((flat == flat[0, 0]).all()),
        "std": spread if math.isfinite(spread) else None,
    }
