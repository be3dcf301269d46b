"""MissingZeroGrad: gradients that are never cleared, or cleared too early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def run(*calls: str, left: int = 0, steps: int = 20) -> list[Step]:
    """Steps with one order of calls, and so many gradients left over."""
    order = {"calls": [[name, 1] for name in calls], "times": 1}
    objects = {"optimizer": {"type": "SGD"}, "optimizer_2": {"type": "SGD"}}
    facts = {
        "calls": {"orders": [order], "rounds": 2, "others": 0, "objects": objects},
        "leftover_gradients": {"optimizer": "optimizer", "looked_at": 4, "present": 4, "nonzero": left},
    }
    return [Step(scalars={"loss": 1.0}, facts=facts if number == 1 else ()) for number in range(steps)]


def epochs() -> list[Step]:
    """A run that clears its gradients every third step."""
    orders = [{"calls": [["backward", 1], ["optimizer.step", 1], *more], "times": times} for more, times in
              (([], 2), ([["optimizer.zero_grad", 1]], 1))]  # fmt: skip
    calls = {"orders": orders, "rounds": 3, "others": 0, "objects": {"optimizer": {"type": "SGD"}}}
    left = {"optimizer": "optimizer", "looked_at": 4, "present": 4}
    facts = [{"calls": calls, "leftover_gradients": {**left, "nonzero": 4 * (n % 3 > 0)}} for n in range(20)]
    return [Step(scalars={"loss": 1.0}, facts=each) for each in facts]


def two_models(*cleared: str) -> list[Step]:
    """A run of two optimizers that take turns, whose script clears the gradients of a module with these parameters."""
    orders = [{"calls": [["backward", 1], [f"{name}.step", 1], ["module.zero_grad", 1]], "times": 1}
              for name in ("optimizer", "optimizer_2")]  # fmt: skip
    module = {"type": "Net", "optimizers": list(cleared)}
    objects = {"optimizer": {"type": "SGD"}, "optimizer_2": {"type": "SGD"}, "module": module}
    facts = {
        "calls": {"orders": orders, "rounds": 2, "others": 0, "objects": objects},
        "leftover_gradients": {"optimizer": "optimizer", "looked_at": 4, "present": 4, "nonzero": 4},
    }
    return [Step(scalars={"loss": 1.0}, facts=facts if number == 1 else ()) for number in range(20)]


def by_hand(*, left: int) -> list[Step]:
    """A run without an optimizer, whose script changes the weights itself."""
    facts = {"leftover_gradients": {"optimizer": "script", "looked_at": 4, "present": 4, "nonzero": left}}
    return [Step(scalars={"loss": 1.0}, facts=facts if number == 1 else ()) for number in range(20)]


class TestMissingZeroGrad(RuleSuite):
    rule = find_rule("MissingZeroGrad")

    def sick(self) -> Sequence[Step]:
        return run("backward", "optimizer.step", left=4)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return [
            run("backward", "optimizer.zero_grad", "optimizer.step"),
            # Of another module, and once per epoch.
            run("backward", "optimizer.step", "module.zero_grad", left=4),
            epochs(),
            by_hand(left=4),
            two_models("optimizer_2"),
            # It ends by a loss that is NaN.
            run("backward", "optimizer.step", left=4, steps=4),
        ]

    def test_a_module_with_its_parameters_clears_those_of_an_optimizer(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path, two_models("optimizer", "optimizer_2"))) == []

    def healthy(self) -> Sequence[Step]:
        # Of two optimizers one is cleared after the first backward of the step: that of a GAN.
        return run("backward", "optimizer_2.zero_grad", "backward", "optimizer_2.step", "optimizer.step",
                   "optimizer.zero_grad", left=4)  # fmt: skip


class TestMissingZeroGradInRealRuns(RealRuns):
    rule = "MissingZeroGrad"
    cause = "gradients_never_cleared"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Micro-batches; the twin clears their sum without zero_grad."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch(model)
        for number in range(60):
            inputs, labels = batch()
            F.cross_entropy(model(inputs), labels).backward()
            if number % 3 == 2:
                optimizer.step()
                for parameter in model.parameters() if not sick else ():
                    parameter.grad = None


class TestClosureInRealRuns(RealRuns):
    rule = "MissingZeroGrad"
    cause = "gradients_never_cleared"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A closure; the twin's clears the gradients."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()

            def closure(inputs: torch.Tensor = inputs, labels: torch.Tensor = labels) -> torch.Tensor:
                if not sick:
                    optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            optimizer.step(closure)


class TestAdversarialExamples(RealRuns):
    rule = "MissingZeroGrad"
    cause = "gradients_never_cleared"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Gradients of inputs; the twin clears those of the parameters before it trains on the new inputs."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            for _ in range(3):
                inputs.requires_grad_()
                F.cross_entropy(model(inputs), labels).backward()
                inputs = (inputs + 0.01 * inputs.grad.sign()).detach()
                if not sick:
                    optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()


@pytest.mark.parametrize(("optimizers", "left_out", "found"), [(1, 0, True), (2, 0, False), (1, 3, False)])
def test_parameters_without_gradients_are_no_cleared_ones_where_backward_may_reach_others(
    run_path: Path, optimizers: int, left_out: int, found: bool
) -> None:
    row = {"type": "SGD", "parameters": 4, "frozen": {"count": 0, "names": []}}
    names = ["optimizer", "optimizer_2"][:optimizers]
    membership = {
        "stepped": "optimizer", "optimizers": dict.fromkeys(names, row),
        "without_gradient": {"count": 4, "names": []}, "left_out": {"count": left_out, "names": []},
    }  # fmt: skip
    steps = run("backward", "optimizer.step")
    steps[1] = Step(scalars={"loss": 1.0}, facts={**dict(steps[1].facts), "membership": membership})
    findings = replay(build_run(run_path, steps), [RuleSpec("MissingZeroGrad")]).findings
    assert [finding.symptoms for finding in findings] == [("gradients_cleared_before_step",)] * found


class TestGradientsThatAreSetToNoneInRealRuns(RealRuns):
    rule = "MissingZeroGrad"
    cause = "gradients_discarded"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The script sets gradients to None before the optimizer steps; the twin does so after it."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            F.cross_entropy(model(inputs), labels).backward()
            if not sick:
                optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None
            if sick:
                optimizer.step()


class TestDiscardedGradientsInRealRuns(RealRuns):
    rule = "MissingZeroGrad"
    cause = "gradients_discarded"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            if sick:
                optimizer.zero_grad()
            optimizer.step()


def test_models_that_a_script_updates_in_turns_clear_their_own_gradients(run_path: Path) -> None:
    assert replay(build_run(run_path, by_hand(left=2)), [RuleSpec("MissingZeroGrad")]).findings == ()


def test_without_calls_and_gradients_it_does_not_apply(run_path: Path) -> None:
    run = build_run(run_path, [Step(scalars={"loss": 1.0}) for _ in range(20)])
    (status,) = replay(run, [RuleSpec("MissingZeroGrad")]).statuses
    assert status.status is Status.NOT_APPLICABLE
