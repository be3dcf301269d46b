"""What every rule must do, ours or yours: derive a test class, say which training is sick and which is healthy.

Example::

    class TestLossTooHigh(RuleSuite):
        rule = LossTooHigh

        def sick(self):
            return [Step(scalars={"loss": 100.0}) for _ in range(20)]

        def healthy(self):
            return [Step(scalars={"loss": 1.0}) for _ in range(20)]
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from watchglass.config import RuleSpec, describe
from watchglass.evaluate import Follower, replay
from watchglass.records import Finding, Mode, ModuleKind, Severity, Status
from watchglass.rules import Rule, built_in_knowledge, documentation
from watchglass.run import StepView
from watchglass.store import open_store
from watchglass.testing import Step, build_run
from watchglass.testing.layers import Modules


def views_of(path: str | Path) -> Iterator[StepView]:
    """The views of a stored run, one by one, as an evaluator makes them."""
    follower = Follower(open_store(str(path)))
    while True:
        before = follower.frames
        for group in follower.poll(full=True):
            yield from group
        if follower.frames == before:
            break
    for group in follower.drain():
        yield from group


def findings_of(rule: Rule, views: Iterable[StepView]) -> list[Finding]:
    """Everything a rule finds over views, unfolded, with what it says at the end."""
    found: list[Finding] = []
    last = None
    for view in views:
        found += rule.check(view) or ()
        last = view
    if last is not None:
        found += rule.finish(last.finished()) or ()
    return found


class RuleSuite(ABC):
    """Tests of one rule. Derive, set :attr:`rule`, write :meth:`sick` and :meth:`healthy`; pytest does the rest."""

    #: The rule.
    rule: ClassVar[type[Rule]]
    #: Parameters that differ from its defaults.
    parameters: ClassVar[dict[str, Any]] = {}
    #: Class names of modules by path, in order of execution.
    modules: ClassVar[Modules] = {}
    #: Least severity that the sick training must get, and that the healthy one must not.
    severity: ClassVar[Severity] = Severity.WARNING

    @abstractmethod
    def sick(self) -> Sequence[Step]:
        """A training on which the rule must fire."""

    @abstractmethod
    def healthy(self) -> Sequence[Step]:
        """Its twin on which it must stay silent."""

    def make(self) -> Rule:
        """A new instance."""
        return self.rule(**self.parameters)

    def build(self, path: Path, steps: Sequence[Step]) -> Path:
        """Stores a training."""
        return Path(build_run(path, steps, modules=self.modules))

    def serious(self, path: Path) -> list[Finding]:
        """Findings of at least :attr:`severity` on a stored run."""
        found = findings_of(self.make(), views_of(path))
        return [finding for finding in found if finding.severity.rank >= self.severity.rank]

    def test_fires_on_the_sick_training(self, tmp_path: Path) -> None:
        """It must."""
        found = self.serious(self.build(tmp_path / "sick", self.sick()))
        assert found, f"{self.rule.__name__} found nothing in the sick training"

    def test_is_silent_on_the_healthy_training(self, tmp_path: Path) -> None:
        """It must be."""
        found = self.serious(self.build(tmp_path / "healthy", self.healthy()))
        assert not found, f"false alarm: {found[0].message}"

    def test_findings_are_complete(self, tmp_path: Path) -> None:
        """A finding says where, and what to do; and survives JSON."""
        for finding in findings_of(self.make(), views_of(self.build(tmp_path / "sick", self.sick()))):
            assert finding.rule == self.rule.__name__
            assert len(finding.id) == 12
            assert finding.message and not finding.message.endswith("."), "a message is a sentence without its dot"
            json.dumps(finding.evidence, allow_nan=False)
            again = Finding.from_json(json.loads(json.dumps(finding.to_json(), allow_nan=False)))
            assert again.to_json() == finding.to_json()
            if finding.severity is not Severity.INFO:
                assert finding.what_to_try, "a finding that people must look at says what to try"
            if self.rule.__module__.startswith("watchglass."):
                assert set(finding.causes) <= set(built_in_knowledge().causes)
                assert set(finding.evidence["symptoms"]) <= set(built_in_knowledge().symptoms)

    def test_state_survives_a_restart_at_every_step(self, tmp_path: Path) -> None:
        """Saved and loaded state gives the same findings, and state is plain JSON."""
        path = self.build(tmp_path / "sick", self.sick())
        whole = findings_of(self.make(), views_of(path))
        rule, parts, last = self.make(), [], None
        for view in views_of(path):
            saved = json.loads(json.dumps(rule.save_state()))
            rule = self.make()
            rule.load_state(saved)
            parts += list(rule.check(view) or ())
            last = view
        parts += list(rule.finish(last.finished()) or ()) if last is not None else []
        assert [finding.to_json() for finding in parts] == [finding.to_json() for finding in whole]

    def test_needs_cover_what_it_looks_at(self, tmp_path: Path) -> None:
        """On the sick training it is not starved: its needs name data that are there."""
        assert self.rule.needs, f"{self.rule.__name__} must say what it needs"
        if self.rule.__module__.startswith("watchglass."):
            spec = RuleSpec(self.rule.__name__, self.parameters)
            (status,) = replay(self.build(tmp_path / "sick", self.sick()), [spec]).statuses
            assert status.status is Status.ISSUES_FOUND, status.reason

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
        odd.append(
            Step(statistics={name: np.zeros((0, 4), dtype=np.float32) for name in names}, units={"a.output": []})
        )
        odd.append(Step(facts={"initialization": {}, "optimizer": {}, "model": {}, "first_bad_module": {}}))
        modules = {"a": ModuleKind.RECTIFIER, "b": ModuleKind.LINEAR, **self.modules}
        path = build_run(tmp_path / "odd", odd * 3, modules=modules)
        rule = self.make()
        findings_of(rule, views_of(path))
        last = list(views_of(path))[-1]
        assert isinstance(rule.applicable(last), str)

    def test_memory_is_bounded(self, tmp_path: Path) -> None:
        """What it remembers does not grow with the length of a run."""
        sizes = []
        steps = list(self.healthy())
        for repeats in (1, 3):
            rule = self.make()
            findings_of(rule, views_of(self.build(tmp_path / str(repeats), steps * repeats)))
            sizes.append(len(json.dumps(rule.save_state())))
        assert sizes[1] <= sizes[0] * 2 + 4096

    def test_documentation_is_complete(self) -> None:
        """One line, the sections, and a sentence for every parameter whose default is valid."""
        documented = documentation(self.rule)
        assert documented.summary.endswith("."), "the first line of the docstring says what it finds"
        if self.rule.__module__.startswith("watchglass."):
            wanted = {"Looks at", "Fires when", "Usual causes", "What to try", "Costs", "Source"}
            assert set(documented.sections) == wanted
            assert all(info.help for info in documented.parameters)
        for info in describe(self.rule):
            self.rule(**{info.name: info.default})
            if not isinstance(info.default, (tuple, type(None))):
                assert getattr(self.rule(**{info.name: str(info.default)}), info.name) == info.default
        for name, overrides in self.rule.calibrations.items():
            assert set(overrides) <= {info.name for info in describe(self.rule)}, name
            self.rule(**overrides)
