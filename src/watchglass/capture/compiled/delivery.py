"""Saves what a twin returned into the records of its step."""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchglass.capture.compiled.batches import BatchFacts, batch_of
from watchglass.capture.compiled.clips import ClipFacts
from watchglass.capture.compiled.collecting import Collected, Updater, ValuePart
from watchglass.capture.compiled.first_bad import CollectedStep, bad_among
from watchglass.capture.compiled.graphs import GraphFacts
from watchglass.capture.compiled.judged_values import JudgedValues
from watchglass.capture.compiled.normalizations import NormalizationFacts
from watchglass.capture.compiled.program import TracedProgram
from watchglass.capture.compiled.reading import Found, models_in
from watchglass.capture.compiled.reductions import received
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.compiled.token_targets import TokenFacts
from watchglass.capture.compiled.updates import UpdateFacts
from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.port import Port
from watchglass.capture.saving.module_tensors import ModuleTensors
from watchglass.capture.saving.parameters import LateGradients, Parameters, describe_bad, items_of
from watchglass.capture.saving.saving import Item, Saving
from watchglass.config import chosen_facts
from watchglass.record import CapturedRecords, DeferredFact, OpenStep
from watchglass.records import Mode, Role, facts

_log = logging.getLogger("watchglass")


class StepDelivery:
    """Saves the values of steps, each by its part, as the plan says, and makes facts of them. For the training thread.

    Args:
        port: Where they go.
        source: The source of facts.
        steps: Opens and closes the steps.
    """

    def __init__(self, port: Port, source: str, steps: CompiledSteps) -> None:
        self._port, self._source, self._first_bad = port, source, steps.first_bad
        self._saving = Saving(port.plan, port.ids, port.cost)
        self._parameters = Parameters(port, self._saving)
        self._modules = ModuleTensors(port, self._saving)
        self._batches, self._judged, self._updates = BatchFacts(source), JudgedValues(source), UpdateFacts(source)
        self._graphs, self._normalizations = GraphFacts(source), NormalizationFacts(source)
        self._tokens, self._clips = TokenFacts(source), ClipFacts(port, source)
        self._programs: list[tuple[int, TracedProgram]] = []
        self._about = port.model_numbers.in_facts

    def traced(self, read: Callable[[], TracedProgram], model: int = 0) -> None:
        """The program of a twin has been traced, whose values are saved next; it is read now."""
        try:
            program = read()
        except Exception as error:  # programs belong to the framework: one that is not as expected ends its facts alone
            _log.debug("watchglass: a compiled program was not read: %s: %s", type(error).__name__, error)
            return
        self._judged.made_by.update({(model, number): made for number, made in program.made_by.items()})
        self._programs.append((model, program))

    def save(
        self, step: OpenStep, values: Mapping[str, Any], known: Mapping[str, Collected],
        updaters: Mapping[int, Updater] | None = None, in_training: bool | None = None,
    ) -> None:  # fmt: skip
        """Save the values of a step, by key.

        Args:
            step: The step that :meth:`CompiledSteps.begin` has returned.
            values: The values.
            known: What each is, in the order in which they are made.
            updaters: What updates each model, by its number; models without one are not updated, or it is not known
                by what.
            in_training: Whether the model runs in training mode; None where the mode of the step says it.
        """
        values = received(values)
        ordered = {key: (what, values[key]) for key, what in known.items() if key in values}
        found: defaultdict[ValuePart, Found] = defaultdict(list)
        for what, value in ordered.values():
            found[what.part].append((what, value))
        by_model = updaters or {}
        collected = CollectedStep(ordered, by_model)
        for model in models_in(found[ValuePart.GRADIENT]):
            gradients = [pair for pair in found[ValuePart.GRADIENT] if pair[0].model == model]
            skips = model in by_model and by_model[model].skips
            bad = self._save_gradients(step, gradients, model, skips=skips)
            if not skips:
                collected.bad_gradients.append(bad)
        if step.mode is Mode.TRAIN:
            self._first_bad.collected(collected)
        if step.due:
            self._save_due(step, found, by_model, in_training)

    def _save_due(
        self, step: OpenStep, found: Mapping[ValuePart, Found], updaters: Mapping[int, Updater],
        in_training: bool | None,
    ) -> None:  # fmt: skip
        records, kinds = step.records, chosen_facts(self._port.config.facts)
        self._save_parameters(records, found)
        for what, value in found[ValuePart.STATE]:
            self._saving.save(records, Role.OPTIMIZER_STATE, Item(value, f"optimizer/{what.name}", what.place))
        self._save_modules(records, found)
        models = models_in(pair for pairs in found.values() for pair in pairs)
        for model in models:
            self._batches.save(step, found, model, kinds, self._about)
            if step.mode is Mode.TRAIN:
                self._updates.save(step, found, model, updaters.get(model), kinds, self._about)
                if "clip" in kinds:
                    norm = self._parameters.norm_of(step.records, model)
                    self._clips.save(step.records, found, model, updaters.get(model), norm)
                if "token_targets" in kinds:
                    self._tokens.save(step, found, model)
        if "running_statistics" in kinds:
            self._normalizations.save(step, found, in_training)
        programs, self._programs = self._programs, []
        for model, program in programs:
            rows = next((tuple(value.shape)[:1] for _, value in batch_of(found, model)), ())
            self._graphs.add(records, program, kinds, model, *rows)
        batch = [value for model in models for _, value in batch_of(found, model)]
        self._judged.save(step, found, batch, kinds, self._about)

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

    def _save_gradients(self, step: OpenStep, found: Found, model: int, *, skips: bool) -> Callable[[], Sequence[str]]:
        """Save the gradients of a model; returns what names those that are not finite, for the recorder's thread."""
        records, names = step.records, [what.name for what, _ in found]
        named = [(value, what.name, _parameter(what)) for what, value in found]
        rows = self._parameters.gradients(records, named) if step.due else None
        if rows is None:
            return functools.cache(lambda: bad_among((what.name, value) for what, value in found))
        bad = self._parameters.norm(records, rows, names, model=model)
        if isinstance(bad, LateGradients):
            find: Callable[[], Sequence[str]] = functools.cache(bad.bad)
        else:
            find = functools.partial(tuple[str, ...], bad)
        if skips:
            fact = DeferredFact(facts.StepSkipped, lambda: facts.StepSkipped() if find() else None)
            records.add_fact(fact, self._source)
        elif isinstance(bad, LateGradients):
            records.add_fact(DeferredFact(facts.NonfiniteGradients, bad.describe), self._source)
        elif bad:
            records.add_fact(describe_bad(bad), self._source)
        return find

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
