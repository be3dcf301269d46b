"""Real training runs for tests of rules: a small PyTorch model, watched in the test process, then evaluated."""

from __future__ import annotations

import ast
import functools
import importlib.util
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from clocks import Now
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.config import RuleSpec
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Finding, Severity, Status
from watchglass.rules import capture_for, default_rules, find_rule

#: The classes from which tests of real runs are derived; the second one is in ``launched_runs.py``.
_BASES = ("RealRuns", "LaunchedRuns")
#: Watches a model until its run ends.
Watch = Callable[[nn.Module], object]
#: The loss of predictions and targets.
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def classifier(activation: Callable[[], nn.Module] = nn.ReLU, depth: int = 3) -> nn.Sequential:
    """Hidden layers of 16 units with an activation each, and four classes."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(16, 16), activation()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def batch(samples: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """New inputs and their classes, which a :func:`classifier` learns."""
    inputs = torch.randn(samples, 16)
    return inputs, inputs[:, :4].argmax(1)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """PyTorch's, looked up at each call: ``watch`` wraps it."""
    return F.cross_entropy(outputs, labels)


def update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    loss: Loss = cross_entropy,
    clip: Callable[[nn.Module], object] | None = None,
) -> None:
    """One training step; ``clip(model)`` is called between its backward and its update."""
    value = loss(model(inputs), labels)
    optimizer.zero_grad()
    value.backward()
    if clip is not None:
        clip(model)
    optimizer.step()


def evaluate(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """One evaluation of one batch."""
    model.eval()
    with torch.no_grad():
        F.cross_entropy(model(inputs), labels)
    model.train()


def fit(
    model: nn.Module,
    watch: Watch,
    *,
    rate: float = 0.05,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    steps: int = 40,
    loss: Loss = cross_entropy,
    clip: Callable[[nn.Module], object] | None = None,
) -> None:
    """Train a model with new batches."""
    updater = optimizer(model.parameters(), lr=rate)
    watch(model)
    for _ in range(steps):
        update(model, updater, *batch(), loss=loss, clip=clip)


class RealRuns(ABC):
    """Tests of one rule on a real run and its healthy twin. Derive, set the class attributes, write :meth:`train`.

    The recordings of a class should take less than a second together.
    """

    #: All of them together take a quarter of the other quick tests, which have made-up runs of each rule.
    pytestmark = pytest.mark.slow

    #: Name of the rule.
    rule: ClassVar[str]
    #: Least severity that the sick run must get, and that the healthy one must not.
    severity: ClassVar[Severity] = Severity.WARNING
    #: Likeliest cause of the first diagnosis of the sick run, by the default rules and this one; "" for an info, which
    #: has no diagnosis.
    cause: ClassVar[str] = ""
    #: Status of the rule on the healthy twin; a summary of every run has a twin without its data.
    twin_status: ClassVar[Status] = Status.NO_ISSUES_FOUND
    #: Why its needs are not all that it reads, so that nothing tests it; "" if they are.
    reads_more: ClassVar[str] = ""
    #: Whether phases of steps are recorded, as under a launcher; by :attr:`clock`.
    profiler: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.reads_more:
            cls.test_its_needs_are_all_that_it_reads = None  # type: ignore[method-assign,assignment]

    @functools.cached_property
    def clock(self) -> Now:
        """The time of the phases of a recording, which only :meth:`train` moves; it begins now."""
        return Now(time.monotonic())

    @abstractmethod
    def train(self, watch: Watch, *, sick: bool) -> None:
        """Train a model that ``watch(model)`` was called with; ``sick`` decides only what makes the run sick."""

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        """Record a run with these settings of capture, by :meth:`train` in this process."""
        with ExitStack() as hooks:

            def watch(model: nn.Module) -> None:
                if not self.profiler:
                    hooks.enter_context(watchglass.watch(model, run=run, strict=True, **capture))
                    return
                # Without the sampler's process, which `watch` would start.
                hook = hooks.enter_context(Hook(run, strict=True, profiler=True, **capture))
                hook.port.phase_clock = self.clock.monotonic_ns
                PyTorchAdapter(hook.port, discover=True)

            torch.manual_seed(0)
            self.train(watch, sick=sick)

    def rules(self) -> list[RuleSpec]:
        """The default rules and this one."""
        return list({spec.name: spec for spec in [*default_rules(), RuleSpec(self.rule)]}.values())

    def found(self, findings: Sequence[Finding]) -> list[str]:
        """Messages of the findings of this rule that count."""
        return [f.message for f in findings if f.rule == self.rule and f.severity.rank >= self.severity.rank]

    def test_fires_on_the_sick_run(self, tmp_path: Path) -> None:
        run = recorded(type(self), tmp_path.parent, sick=True)
        evaluation = replay(run, self.rules())
        assert self.found(evaluation.findings)
        if self.severity is Severity.INFO:
            return
        diagnosis = verdict(watchglass.open_run(run), evaluation).diagnoses[0]
        assert diagnosis.causes[0].cause.id == self.cause
        assert diagnosis.what_to_try

    def test_no_rule_fires_on_the_healthy_twin(self, tmp_path: Path) -> None:
        evaluation = replay(recorded(type(self), tmp_path.parent, sick=False), self.rules())
        assert [finding.message for finding in evaluation.findings if finding.severity is not Severity.INFO] == []
        assert self.found(evaluation.findings) == []
        assert {status.rule: status.status for status in evaluation.statuses}[self.rule] is self.twin_status

    def test_its_needs_are_all_that_it_reads(self, tmp_path: Path) -> None:
        """It finds the same where only its needs are captured; test_live_rules.py has such runs of healthy twins."""
        everything, needs = (recorded(type(self), tmp_path.parent, sick=True, alone=alone) for alone in (False, True))
        others = find_rule(self.rule).calibrations
        # An algorithm of a calibration has other needs, which are not recorded here.
        for calibration in ("default", *(name for name in others if not isinstance(others[name], type))):
            full, own = (replay(run, [RuleSpec(self.rule)], calibration=calibration) for run in (everything, needs))
            assert list(map(_facts, own.findings)) == list(map(_facts, full.findings)), calibration
            assert own.statuses == full.statuses, calibration


def recorded(suite: type[RealRuns], folder: Path, *, sick: bool, alone: bool = False) -> str:
    """A run of a suite, recorded once for its tests.

    Args:
        suite: The suite.
        folder: Where it writes.
        sick: Whether it is the sick one.
        alone: Whether only the needs of the rule are captured.
    """
    return _recorded(suite, folder, sick, alone)


@functools.cache
def _recorded(suite: type[RealRuns], folder: Path, sick: bool, alone: bool) -> str:
    made = suite()
    capture = {**capture_for([RuleSpec(made.rule)] if alone else made.rules()), "save_interval": 1}
    run = Path(tempfile.mkdtemp(prefix="real-", dir=folder)) / "run"
    made.record(run, capture, sick=sick)
    return str(run)


class Suite(NamedTuple):
    """A class of tests of real runs: its file, its name, and the rule that it tests."""

    file: Path
    name: str
    rule: str

    def load(self) -> type[RealRuns]:
        """The class."""
        spec = importlib.util.spec_from_file_location(self.file.stem, self.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded: type[RealRuns] = getattr(module, self.name)
        return loaded


@functools.cache
def suites() -> list[Suite]:
    """All classes with one of the bases, found in the text of the tests."""
    found = []
    for file in sorted(Path(__file__).parent.rglob("test_*.py")):
        text = file.read_text()
        for node in ast.parse(text).body if any(f"({base})" in text for base in _BASES) else ():
            if not isinstance(node, ast.ClassDef) or not any(ast.unparse(base) in _BASES for base in node.bases):
                continue
            set_here = [each for each in node.body if isinstance(each, ast.Assign)]
            rules = [each.value for each in set_here if ast.unparse(each.targets[0]) == "rule"]
            names = {n.targets[0].id: n.value for n in ast.parse(text).body if isinstance(n, ast.Assign)
                     and isinstance(n.targets[0], ast.Name)}  # fmt: skip
            value = names.get(rules[0].id, rules[0]) if isinstance(rules[0], ast.Name) else rules[0]
            found.append(Suite(file, node.name, ast.literal_eval(value)))
    return found


def _facts(finding: Finding) -> tuple[Any, ...]:
    """All of a finding but its message, which may name layers by what is recorded of other tensors."""
    found = finding
    return found.rule, found.severity, found.step, found.count, found.tensors, repr(found.value), found.causes
