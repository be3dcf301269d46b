"""What the steps of JAX have collected, and what their models, optimizers and programs are, for the records."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

from watchglass.capture.compiled.collecting import Collected, Updater, ValuePart, Values
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.membership import OptimizedParameters
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.frameworks import FRAMEWORKS, member
from watchglass.capture.jax.functions import About
from watchglass.capture.jax.graph import read
from watchglass.capture.jax.known_functions import KnownFunctions
from watchglass.capture.jax.tracing import TRACING
from watchglass.capture.port import Port
from watchglass.config import chosen_facts
from watchglass.record import OpenStep
from watchglass.records import Mode


class JaxStepValues:
    """Saves the values of due steps, and describes models.

    Args:
        port: Gets the records.
        functions: Have the programs of twins.
        steps: Gets the alarms of values that are not finite.
    """

    def __init__(self, port: Port, functions: KnownFunctions, steps: CompiledSteps) -> None:
        self._port, self._functions = port, functions
        self._delivery = StepDelivery(port, "jax", steps)
        self._membership = OptimizedParameters("update")
        self._arrays = member(FRAMEWORKS["jax"].arrays)
        self._described: set[int] = set()

    def save(
        self, step: OpenStep, about: About, update_by: About, values: Values, updaters: Mapping[int, Updater]
    ) -> None:
        """Save what was collected of a step.

        Args:
            step: The step.
            about: What its calls do.
            update_by: What the call does that updates.
            values: The values.
            updaters: What has changed the parameters, by number of the model.
        """
        self._describe_programs()
        train = about.mode is Mode.TRAIN
        if train and about.model not in self._described:
            self._describe(about)
        known = self._known_of(about, values)
        if train and step.due and "membership" in chosen_facts(self._port.config.facts):
            self._note_membership(values, known, update_by, about.unused, step)
        with self._arrays.owned():
            self._delivery.save(step, _without(values, update_by.kept, about.unused), known, updaters)

    def _note_membership(
        self, values: Values, known: Mapping[str, Collected], update: About, unused: Collection[str], step: OpenStep
    ) -> None:
        """Say which parameters optimizers get; of none where a parameter is updated that is not given to any."""
        first, given = TRACING.collector.known, dict[int, dict[str, dict[str, bool]]]()
        after = {first[key].name for key in values if first[key].part is ValuePart.AFTER}
        trained: dict[int, dict[str, bool]] = {}
        for key in values:
            what, base = known[key], first[key].name
            if what.part is ValuePart.GRADIENT and base not in update.kept:
                has = trained.setdefault(what.model, {})[what.name] = base not in unused
                if base in after:
                    kinds = given.setdefault(what.model, {})
                    kinds.setdefault(update.given.get(base, ""), {})[what.name] = has
        for model, kinds in given.items():
            if "" not in kinds:
                derived = [name for name, has in trained[model].items() if has]
                self._membership.save(step, model, kinds, trained[model], derived)

    @staticmethod
    def _known_of(about: About, values: Values) -> Mapping[str, Collected]:
        """What the values of a call are, in the order in which they are made."""
        known = TRACING.collector.known
        if about.model == about.base:
            return known
        return {
            key: TRACING.models.renamed(key, what, about.model) if what.model == about.base else what
            for key, what in known.items()
            if key in values
        }

    def _describe_programs(self) -> None:
        programs, self._functions.programs = self._functions.programs, []
        for jaxpr, returned, model in programs:
            known = TRACING.collector.known
            self._delivery.traced(functools.partial(read, jaxpr, returned, known, model), model)

    def _describe(self, about: About) -> None:
        model = about.model
        self._described.add(model)
        records = self._port.records.current()
        records.add_fact(TRACING.models.description(model), "jax")
        optimizer = TRACING.optimizer_of(about.base)
        if optimizer is not None:
            records.add_fact(optimizer.fact(TRACING.models.about(model)), "optax")

    @staticmethod
    def merged(parts: list[Values]) -> Values:
        """The values of all parts: means of gradients and losses, the latest of others."""
        known, merged = TRACING.collector.known, Values()
        averaged: dict[str, list[Any]] = {}
        for values in parts:
            for key, value in values.items():
                if known[key].part in (ValuePart.GRADIENT, ValuePart.LOSS):
                    averaged.setdefault(key, []).append(value)
                elif known[key].part is not ValuePart.BEFORE or key not in merged:
                    merged[key] = value
        for key, several in averaged.items():
            merged[key] = several[0] if len(several) == 1 else sum(several) / len(several)
        return merged

    @staticmethod
    def collected_loss(values: Values) -> Any:
        """The loss among the values of a call; None without one."""
        known = TRACING.collector.known
        parts = (ValuePart.LOSS, ValuePart.METRIC)
        return next((value for part in parts for key, value in values.items() if known[key].part is part), None)


def _without(values: Values, kept: Collection[str], unused: Collection[str]) -> Values:
    """Values without those of weights that are frozen, and without gradients that do not exist."""
    if not (kept or unused):
        return values
    left_out = {ValuePart.BEFORE: kept, ValuePart.AFTER: kept, ValuePart.GRADIENT: unused}
    whats = ((key, TRACING.collector.known[key]) for key in values)
    return {key: values[key] for key, what in whats if what.name not in left_out.get(what.part, ())}
