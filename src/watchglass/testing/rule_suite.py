"""Tests that every rule must pass, built in or custom: derive a class, and give it a sick run and a healthy twin.

Example::

    class TestLossTooHigh(RuleSuite):
        rule = LossTooHigh

        def sick(self):
            return [Step(scalars={"loss": 100.0}) for _ in range(20)]

        def healthy(self):
            return [Step(scalars={"loss": 1.0}) for _ in range(20)]
"""

from __future__ import annotations

import copy
import functools
import json
import math
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from watchglass.config import RuleSpec, describe
from watchglass.evaluate import Cutting, Follower, journal_of, replay, tick_of
from watchglass.records import ROW_KINDS, SCALARS, Finding, Mode, ModuleKind, Observation, Severity, Status
from watchglass.rules import Rule, built_in_knowledge, documentation, readable_statistics, state_of, symptoms_of
from watchglass.store import open_store
from watchglass.tables import JointStep, Readable, StatisticsRows, StepRecords, StepView, Written
from watchglass.testing import Batch, Silence, Step, build_run
from watchglass.testing.layers import Modules
from watchglass.testing.sentence_numbers import plain_state, unmeasured_numbers

#: What a message says only of a value that is so.
_NOT_FINITE = re.compile(r"\b(is|became) (now )?(NaN|infinite)\b")
#: What no message says of a number that is above zero, and no number that is zero is worth.
_NOTHING = re.compile(r"(?<![\d.,])-?0(\.0+)? times\b")


def views_of(path: str | Path) -> Iterator[StepView]:
    """The views of a stored run, one by one, as an evaluator makes them."""
    for moment in Follower(open_store(str(path))).read_all():
        if isinstance(moment, JointStep):
            yield from moment.views


def shown(
    make: Callable[[], Rule],
    path: str | Path,
    *,
    restarted: bool = False,
    look: Callable[[Finding, Rule], None] = lambda finding, rule: None,
) -> tuple[list[Finding], list[Rule]]:
    """Everything that a rule finds in a stored run, unfolded, and its instances; it reads what its needs declare.

    Args:
        make: A new instance.
        path: The run.
        restarted: Whether each instance is replaced by one with its state before each moment.
        look: Called with each finding as it is yielded, and the instance.
    """
    store = open_store(str(path))
    follower = Follower(store)
    for seen in journal_of(store)[0]:
        follower.observe(seen)
    rules: dict[tuple[str, int], Rule] = {}
    last: dict[tuple[str, int], StepView | JointStep] = {}
    found: list[Finding] = []

    def ask(key: tuple[str, int], method: str, about: Any) -> None:
        rule = rules[key] if key in rules else make()
        if restarted:
            kept = copy.deepcopy(state_of(rule))
            rule = make()
            for name, value in kept.items():
                setattr(rule, name, value)
        rules[key] = rule
        for finding in getattr(rule, method)(about) or ():
            look(finding, rule)
            found.append(finding)

    streams, modes, joint = make().streams, make().modes, type(make()).check is Rule.check
    follower.readable = readable = Readable(None)
    readable.rule, readable.declared = make().name, readable_statistics(make().needs, streams)
    readable.add(readable.declared)
    follower.cut([] if streams is None else [streams])
    cutting = None if streams is None else Cutting(streams, follower.run_id)
    for moment in follower.read_all():
        if isinstance(moment, JointStep):
            step = moment if cutting is None else moment.showing(cutting.recent(moment.attempt))
            parts: Sequence[Any] = step.by_model if joint else step.views
            for part in parts:
                key = ("" if joint else part.worker, part.model)
                if part.mode in modes:
                    ask(key, "check_step" if joint else "check", part)
                last[key] = part
        elif isinstance(moment, Observation) and moment.kind == "tick":
            for key in list(last) or [("", 0)] * joint:
                ask(key, "tick", replace(tick_of(moment, follower.run_id), last=last.get(key)))
        elif isinstance(moment, Written) and cutting is not None:
            for window in cutting.cut(moment):
                for key in list(last) or [("", 0)] * joint:
                    ask(key, "check_window", replace(window, last=last.get(key)))
    for key, part in last.items():
        views = [view.finished() for view in (part.views if isinstance(part, JointStep) else (part,))]
        ask(key, "finish", JointStep(tuple(views)) if joint else views[0])
    return found, list(rules.values())


class RuleSuite(ABC):
    """Tests of one rule. Derive, set :attr:`rule`, write :meth:`sick` and :meth:`healthy`."""

    #: The rule.
    rule: ClassVar[type[Rule]]
    #: Parameters that differ from its defaults.
    parameters: ClassVar[dict[str, Any]] = {}
    #: Class names of modules by path, in order of execution.
    modules: ClassVar[Modules] = {}
    #: Workers of the runs; :attr:`Step.workers` selects those that record a step.
    workers: ClassVar[int] = 1
    #: Lowest severity that the sick run must get, and that the healthy one must not.
    severity: ClassVar[Severity] = Severity.WARNING

    @abstractmethod
    def sick(self) -> Sequence[Step | Silence | Batch]:
        """A run on which the rule must fire."""

    @abstractmethod
    def healthy(self) -> Sequence[Step | Silence | Batch]:
        """Its twin on which the rule must stay silent."""

    def also_sick(self) -> Sequence[Sequence[Step | Silence | Batch]]:
        """Further runs on which the rule must fire, in other ways."""
        return ()

    def make(self) -> Rule:
        """A new instance."""
        return self.rule(**self.parameters)

    def build(self, path: Path, steps: Sequence[Step | Silence | Batch]) -> Path:
        """Stores a run."""
        return Path(build_run(path, steps, modules=self.modules, workers=self.workers))

    def serious(self, path: Path) -> list[Finding]:
        """Findings of at least :attr:`severity` on a stored run."""
        return self._serious(shown(self.make, path)[0])

    def _serious(self, found: Sequence[Finding]) -> list[Finding]:
        return [finding for finding in found if finding.severity.rank >= self.severity.rank]

    def test_fires_on_the_sick_run(self, tmp_path: Path) -> None:
        """On each of them, at least once."""
        for number, run in enumerate(_stored(type(self), tmp_path.parent)[1:]):
            assert self._serious(run.found), f"{self.rule.__name__} found nothing in sick run {number}"

    def test_is_silent_on_the_healthy_run(self, tmp_path: Path) -> None:
        """Findings of less than :attr:`severity` are allowed."""
        found = self._serious(_stored(type(self), tmp_path.parent)[0].found)
        assert not found, f"false alarm: {found[0].message}"

    def test_findings_are_complete(self, tmp_path: Path) -> None:
        """A finding has a message and advice, and passes through JSON unchanged."""
        for finding in (one for run in _stored(type(self), tmp_path.parent)[1:] for one in run.found):
            assert finding.rule == self.rule.__name__
            assert len(finding.id) == 12
            assert finding.message and not finding.message.endswith("."), "a message is a sentence without its dot"
            assert (
                not _NOT_FINITE.search(finding.message) or finding.value is None or not math.isfinite(finding.value)
            ), f"the message says that a value is not finite, and it is {finding.value}: {finding.message}"
            assert not _NOTHING.search(finding.message), f"a number is rounded to 0: {finding.message}"
            json.dumps(finding.evidence, allow_nan=False)
            again = Finding.from_json(json.loads(json.dumps(finding.to_json(), allow_nan=False)))
            assert again.to_json() == finding.to_json()
            if finding.severity is not Severity.INFO:
                assert finding.what_to_try, "a finding above info must have what_to_try"
            if self.rule.__module__.startswith("watchglass."):
                assert set(finding.causes) <= set(built_in_knowledge().causes)
                assert set(finding.evidence["symptoms"]) <= set(symptoms_of(self.rule))

    def test_numbers_in_sentences_are_measured(self, tmp_path: Path) -> None:
        """Each is the value, the limit, a step, a parameter, or in the evidence or the state."""
        for run in _stored(type(self), tmp_path.parent):
            assert not run.unmeasured, f"put into the evidence what the sentence states: {run.unmeasured[0]}"

    def test_state_survives_a_restart_at_every_step(self, tmp_path: Path) -> None:
        """Saved and loaded state gives the same findings, and state is plain JSON."""
        for run in _stored(type(self), tmp_path.parent)[1:]:
            parts, _ = shown(self.make, run.path, restarted=True)
            assert [finding.to_json() for finding in parts] == [finding.to_json() for finding in run.found]

    def test_needs_cover_what_it_looks_at(self, tmp_path: Path) -> None:
        """On the sick run it is not starved: the run has the data that its needs name."""
        says = self.rule.needs or self.rule.streams or self.rule.tick is not Rule.tick
        assert says, f"{self.rule.__name__} must declare what it needs"
        if self.rule.__module__.startswith("watchglass."):
            spec = RuleSpec(self.rule.__name__, self.parameters)
            for run in _stored(type(self), tmp_path.parent)[1:]:
                evaluation = replay(run.path, [spec])
                (status,), found = evaluation.statuses, {finding.severity for finding in evaluation.findings}
                assert found, status.reason
                wanted = Status.NO_ISSUES_FOUND if found == {Severity.INFO} else Status.ISSUES_FOUND
                assert status.status is wanted, status.reason

    def test_survives_any_data(self, tmp_path: Path) -> None:
        """Nothing captured, NaN everywhere, empty tensors, evaluation only: no exception, and no state that grows."""
        odd = [
            Step(),
            Step(mode=Mode.EVAL),
            Step(mode=Mode.PREDICT, scalars={"loss": float("nan")}),
            Step(scalars={"loss": float("inf"), "gradient_norm": float("nan"), "learning_rate": 0.0}),
            Step(scalars={"loss": 0.0, "gradient_norm": 0.0, "accuracy": 1.0}),
            Step(scalars={"loss": -1e30}),
        ]
        names = ("a.weight", "gradient/a.weight", "update/a.weight", "a.output", "a.input.0", "b.weight", "b.output")
        for value in (np.nan, np.inf, 0.0, 1e-45):
            arrays = {name: np.full((4, 4), value, dtype=np.float32) for name in names}
            odd.append(Step(scalars={"loss": 1.0}, statistics=arrays, units={"a.output": [value == 0] * 4}))
        empty = {name: np.zeros((0, 4), dtype=np.float32) for name in names}
        odd.append(Step(statistics=empty, units={"a.output": []}))
        odd.append(Step(facts={"initialization": {}, "optimizer": {}, "model": {}, "first_bad_module": {}}))
        nothing = {"text": "", "f32": np.nan, "f64": np.nan}
        kinds = [kind for kind in ROW_KINDS.values() if self.rule.streams and kind.name in self.rule.streams.kinds]
        rows = {kind: [(0.0, *([] if f.array else nothing.get(f.type, 0) for f in kind.own))] for kind in kinds}
        batches = [Batch(rows, seconds=self.rule.streams.length_s)] * 2 if self.rule.streams else []
        modules = {"a": ModuleKind.RECTIFIER, "b": ModuleKind.LINEAR, **self.modules}
        path = build_run(tmp_path / "odd", [*odd * 3, *batches, Silence()], modules=modules, workers=self.workers)
        _, rules = shown(self.make, path)
        last = list(views_of(path))[-self.workers :]
        joint = self.rule.check is Rule.check
        assert all(isinstance(rule.applicable(JointStep(tuple(last)) if joint else last[-1]), str) for rule in rules)

    def test_memory_is_bounded(self, tmp_path: Path) -> None:
        """Its state does not grow with the length of a run."""
        _, rules = shown(self.make, self.build(tmp_path / "long", [*self.healthy()] * 2))
        before, after = _stored(type(self), tmp_path.parent)[0].size, _size(rules)
        assert after <= before * 1.5 + 2048

    def test_idle_rules_do_nothing_at_plain_steps(self, tmp_path: Path) -> None:
        """A rule that declares itself idle finds and remembers nothing where a step has scalars alone."""
        for run in _stored(type(self), tmp_path.parent) if self.rule.idle_at_plain_steps else ():
            _check_idle(self.make, run.path)

    def test_documentation_is_complete(self) -> None:
        """One line, the sections, and a sentence for every parameter whose default is valid."""
        documented = documentation(self.rule)
        assert documented.summary.endswith("."), "the first line of the docstring must be a sentence"
        if self.rule.__module__.startswith("watchglass."):
            wanted = {"Looks at", "Fires when", "Usual causes", "What to try", "Costs", "Source"}
            assert set(documented.sections) == wanted
            assert all(info.help for info in documented.parameters)
        for info in describe(self.rule):
            self.rule(**{info.name: info.default})
            if not isinstance(info.default, (tuple, type(None))):
                assert getattr(self.rule(**{info.name: str(info.default)}), info.name) == info.default
        for name, overrides in documented.calibrations.items():
            if name in documented.algorithms:
                continue
            assert set(overrides) <= {info.name for info in describe(self.rule)}, name
            self.rule(**overrides)


class _Run(NamedTuple):
    """A stored run, and what its rule finds in it."""

    path: Path  #: The run.
    found: list[Finding]  #: All findings.
    size: int  #: The size of the rule's state then.
    unmeasured: list[str]  #: Sentences with numbers that are not measured, after these numbers.


@functools.cache
def _stored(suite: type[RuleSuite], folder: Path) -> list[_Run]:
    """The healthy run and the sick ones, built and evaluated once for the tests of a class."""
    made, path, runs = suite(), Path(tempfile.mkdtemp(prefix="rule-", dir=folder)), []
    for number, steps in enumerate((made.healthy(), made.sick(), *made.also_sick())):
        stored = made.build(path / str(number), steps)
        unmeasured: list[str] = []

        def look(finding: Finding, rule: Rule, into: list[str] = unmeasured) -> None:
            numbers = unmeasured_numbers(finding, rule)
            into.extend([f"{', '.join(numbers)}: {finding.message}"] if numbers else [])

        found, rules = shown(made.make, stored, look=look)
        runs.append(_Run(stored, found, _size(rules), unmeasured))
    return runs


def _check_idle(make: Callable[[], Rule], path: Path) -> None:
    """Shows a rule each step of a run, and after it the same step with nothing but its scalars."""
    rules: dict[tuple[str, int], Rule] = {}
    joint = type(make()).check is Rule.check
    for moment in Follower(open_store(str(path))).read_all():
        for part in (moment.by_model if joint else moment.views) if isinstance(moment, JointStep) else ():
            if part.mode not in make().modes:
                continue
            key = ("" if joint else part.worker, part.model)
            rule = rules.setdefault(key, make())
            check: Callable[[Any], Any] = rule.check_step if joint else rule.check
            list(check(part) or ())
            before = plain_state(rule)
            found = list(check(_plain(part)) or ())
            assert not found, f"{rule.name} found at a plain step: {found[0].message}"
            assert plain_state(rule) == before, f"{rule.name} remembered something at a plain step, {part}"


def _plain(part: StepView | JointStep) -> StepView | JointStep:
    if isinstance(part, JointStep):
        return replace(part, views=tuple(view for each in part.views if isinstance(view := _plain(each), StepView)))
    whole = part.records
    records = StepRecords(whole.end, whole.catalog, {SCALARS: whole.scalars}, readable=whole.readable)
    none = StatisticsRows.none(part.records.readable.fields or ())
    plain = replace(part, records=replace(records, statistics=none), stretches=(), observed=(), streams=())
    assert plain.is_plain
    return plain


def _size(rules: Sequence[Rule]) -> int:
    return sum(len(json.dumps(plain_state(rule))) for rule in rules)
