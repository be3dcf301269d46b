"""Tests that every action must pass, built in or custom: derive a class, with parameters that work and that fail.

Example::

    class TestAppendToFile(ActionSuite):
        name = "my_actions.py:AppendToFile"

        def works(self, tmp_path):
            return {"path": str(tmp_path / "findings.txt")}

        def fails(self, tmp_path):
            return {"path": str(tmp_path / "no" / "such" / "folder")}

        def arrived(self, tmp_path):
            return len((tmp_path / "findings.txt").read_text().splitlines())
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from watchglass.actions import Action, Courier, DeliveryOutcome, Subscription, build_action, documentation, find_action
from watchglass.config import ActionSpec
from watchglass.records import Event, Finding, Mode, RuleStatus, Severity, Status


def example_event(kind: str = "finding", **changed: Any) -> Event:
    """An event as an evaluator makes it.

    Args:
        kind: ``"finding"``, ``"status"`` or ``"summary"``.
        **changed: Fields of the finding that differ from the example.
    """
    given: dict[str, Any] = {
        "id": "abcdefabcdef", "rule": "ExplodingTensor", "severity": Severity.ERROR, "step": 7, "last_step": 7,
        "count": 1, "mode": Mode.TRAIN, "worker": "worker_0", "tensors": ("loss",), "value": float("nan"),
        "limit": None, "message": "the loss became NaN at step 7",
        "what_to_try": ("Lower the learning rate, to 0.05 for a start", "Clip the gradient norm"),
    }  # fmt: skip
    finding = Finding(**{**given, **changed})
    run = ("/runs/mine", "run-1", 0)
    if kind == "finding":
        return Event(kind, f"e-{finding.id}", *run, finding.rule, 1_700_000_000_000_000_000, finding=finding)
    if kind == "status":
        now = RuleStatus("ExplodingTensor", Status.ISSUES_FOUND)
        return Event(kind, "e-status", *run, now.rule, 1_700_000_000_000_000_000, None, now, Status.IN_PROGRESS)
    return Event(kind, "e-summary", *run, "", 1_700_000_000_000_000_000, left_out=37)


def delivered(
    spec: ActionSpec, event: Event, *, timeout_s: float = 30.0, environ: Mapping[str, str] | None = None
) -> DeliveryOutcome:
    """Deliver one event as an evaluator does, in a separate process; waits for it."""
    courier = Courier(spec, event, timeout_s, environ)
    try:
        while (outcome := courier.poll()) is None:
            time.sleep(0.01)
        return outcome
    finally:
        courier.end()


class ActionSuite(ABC):
    """Tests of one action. Derive, set :attr:`name`, write the three methods."""

    #: Built-in name, or ``"path/to/file.py:MyAction"``.
    name: ClassVar[str]

    @abstractmethod
    def works(self, tmp_path: Path) -> dict[str, Any]:
        """Parameters with which it can deliver."""

    @abstractmethod
    def fails(self, tmp_path: Path) -> dict[str, Any]:
        """Parameters with which it cannot."""

    @abstractmethod
    def arrived(self, tmp_path: Path) -> int:
        """Number of events that have reached the destination."""

    def event(self, tmp_path: Path, kind: str = "finding", **changed: Any) -> Event:
        """The event that is delivered; arguments as of :func:`example_event`."""
        return example_event(kind, **changed)

    def make(self, parameters: Mapping[str, Any]) -> Action:
        """The action."""
        action: Subscription = build_action(ActionSpec(self.name, dict(parameters)))
        assert isinstance(action, Action), f"{self.name} is not a watchglass.Action"
        return action

    def test_is_documented(self) -> None:
        """The first line of its docstring is a sentence."""
        documented = documentation(find_action(self.name))
        assert documented.summary.endswith("."), "the first line of the docstring is a sentence"
        assert len(documented.summary) <= 120, "the first line of the docstring fits a line"

    def test_its_parameters_travel_as_json(self, tmp_path: Path) -> None:
        """Parameters given in code reach the process of the delivery unchanged."""
        given = self.works(tmp_path)
        assert json.loads(json.dumps(given)) == given
        self.make(given)

    def test_every_kind_of_event_that_it_subscribes_to_arrives(self, tmp_path: Path) -> None:
        """From a separate process, once each."""
        spec = ActionSpec(self.name, {**self.works(tmp_path), "on": "finding,status"})
        action = self.make(spec.parameters)
        for number, kind in enumerate(("finding", "status", *(("summary",) if action.takes_summaries else ())), 1):
            event = self.event(tmp_path, kind)
            assert action.wants(event)
            outcome = delivered(spec, event, timeout_s=action.timeout_s)
            assert outcome.done, f"{kind}: {outcome.reason}"
            assert self.arrived(tmp_path) == number

    def test_a_message_can_hold_anything(self, tmp_path: Path) -> None:
        """Braces, quotes, markup, other alphabets and line ends are plain text."""
        event = self.event(
            tmp_path, message="{run} 'a' \"b\" $HOME `id` <b> % é 損失 \\ ; | &\nnext", tensors=("x" * 300,)
        )
        outcome = delivered(ActionSpec(self.name, self.works(tmp_path)), event)
        assert outcome.done, outcome.reason
        assert self.arrived(tmp_path) == 1

    def test_a_failure_is_reported_in_a_line(self, tmp_path: Path) -> None:
        """The outcome has a reason of one line."""
        outcome = delivered(ActionSpec(self.name, self.fails(tmp_path)), self.event(tmp_path))
        assert not outcome.done
        assert outcome.reason
        assert "\n" not in outcome.reason
