"""Saves what a twin returned into the records of its step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from watchglass.capture.compiled.collecting import Collected, ValuePart
from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.port import Port
from watchglass.capture.saving.module_tensors import ModuleTensors
from watchglass.capture.saving.parameters import LateGradients, Parameters, describe_bad, items_of
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords, DeferredFact, OpenStep
from watchglass.records import Role, facts

Found = list[tuple[Collected, Any]]


class StepDelivery:
    """Saves the values of steps, each by its part, as the plan says. For the training thread.

    Args:
        port: Where they go.
        source: The source of facts.
    """

    def __init__(self, port: Port, source: str) -> None:
        self._port, self._source = port, source
        self._saving = Saving(port.plan, port.ids, port.cost)
        self._parameters = Parameters(port, self._saving)
        self._modules = ModuleTensors(port, self._saving)

    def save(self, step: OpenStep, values: Mapping[str, Any], known: Mapping[str, Collected]) -> None:
        """Save the values of a step, by key.

        Args:
            step: A step that is due.
            values: The values.
            known: What each is.
        """
        found: defaultdict[ValuePart, Found] = defaultdict(list)
        for key, value in values.items():
            found[known[key].part].append((known[key], value))
        records = step.records
        self._save_parameters(records, found)
        for model in sorted({what.model for what, _ in found[ValuePart.GRADIENT]}):
            self._save_gradients(records, [pair for pair in found[ValuePart.GRADIENT] if pair[0].model == model], model)
        for what, value in found[ValuePart.STATE]:
            self._saving.save(records, Role.OPTIMIZER_STATE, Item(value, f"optimizer/{what.name}", what.place))
        self._save_modules(records, found)

    def _save_parameters(self, records: CapturedRecords, found: Mapping[ValuePart, Found]) -> None:
        before = {what.name: (what, value) for what, value in found[ValuePart.BEFORE]}
        weights, biases = items_of((value, what.name, _parameter(what)) for what, value in before.values())
        self._saving.save_all(records, Role.WEIGHT, weights)
        self._saving.save_all(records, Role.BIAS, biases)
        if self._port.plan.wants(Role.UPDATE):
            changed = [(what, value) for what, value in found[ValuePart.AFTER] if what.name in before]
            items = items_of((value, f"update/{what.name}", _parameter(what)) for what, value in changed)
            old = {f"update/{name}": value for name, (_, value) in before.items()}
            rows = [item._replace(before=old[item.name]) for part in items for item in part]
            self._saving.save_all(records, Role.UPDATE, rows)

    def _save_gradients(self, records: CapturedRecords, found: Found, model: int) -> None:
        named = [(value, what.name, _parameter(what)) for what, value in found]
        rows = self._parameters.gradients(records, named)
        if rows is None:
            return
        bad = self._parameters.norm(records, rows, [name for _, name, _ in named], model=model)
        if isinstance(bad, LateGradients):
            records.add_fact(DeferredFact(facts.NonfiniteGradients, bad.describe), self._source)
        elif bad:
            records.add_fact(describe_bad(bad), self._source)

    def _save_modules(self, records: CapturedRecords, found: Mapping[ValuePart, Found]) -> None:
        for part, role, infix in ((ValuePart.INPUT, Role.INPUT, "input"), (ValuePart.OUTPUT, Role.OUTPUT, "output")):
            for what, value in found[part]:
                axis = len(value.shape) - 1 if len(value.shape) > 1 else None
                name = what.place.named(infix, what.name)
                self._modules.save(records, role, Item(value, name, what.place, what.tags, axis))
        for part, role in ((ValuePart.PREDICTIONS, Role.PREDICTION), (ValuePart.LABELS, Role.LABEL)):
            for what, value in found[part]:
                self._saving.save(records, role, Item(value, what.name, tags=what.tags))
        for what, value in found[ValuePart.CUSTOM]:
            self._port.save_tensor(what.name, value, None)


def _parameter(what: Collected) -> ParameterPlace:
    if what.parameter is None:
        raise ValueError(f"{what.part.value} {what.name} has no place of a parameter")
    return what.parameter
