"""Which module is named by a re-run when a training run meets its first NaN or infinity."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from failing import Act, Bad, Poisoned, Training, fact_of, facts_of, network, to_nan
from limited import watching_within
from watchglass import open_run
from watchglass.capture.limits import CaptureLimits
from watchglass.evaluate import replay


@pytest.mark.parametrize("spoil", [to_nan, lambda x: x * 1e38 * 1e38, torch.log])
def test_a_rerun_names_the_module_whose_output_was_bad_first(tmp_path: Path, spoil: Act) -> None:
    found = fact_of(tmp_path / "run", Training(network(spoil)))
    assert (found["level"], found["where"], found["module"], found["module_type"]) == ("rerun", "forward", "3", "Bad")
    assert (found["tensor"], found["verified"], found["refused"]) == ("3.output", "outputs", "")


def test_the_rerun_leaves_no_trace_in_the_training(tmp_path: Path) -> None:
    class Stateful(nn.Module):
        """Keeps what it likes: a number, a tensor, a list, a dictionary."""

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.last: Tensor | None = None
            self.sizes: list[int] = []
            self.known: dict[str, int] = {}

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.last = x.detach()
            self.sizes.append(len(x))
            self.known[f"call {self.calls}"] = len(x)
            return x

    def run(watched: bool) -> tuple[list[Any], dict[str, Tensor]]:
        stateful = Stateful()
        training = Training(network(lambda x: x * math.inf).append(stateful))
        loss = training.loss
        # Drawn after the forward, which the re-run must not draw again.
        training.loss = lambda: loss() * (1 + torch.rand(()) + random.random() + float(np.random.rand()))  # type: ignore[method-assign] # noqa: NPY002
        if watched:
            assert fact_of(tmp_path / "run", training)["level"] == "rerun"
        else:
            for step in range(6):
                training.spoil(step >= 3)
                training.step()
        assert stateful.last is not None
        state = [stateful.calls, stateful.last.tolist(), stateful.sizes, stateful.known]
        draws = [torch.rand(1).item(), random.random(), float(np.random.rand())]  # noqa: NPY002
        return [repr(state), draws], training.model.state_dict()

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    plain = run(watched=False)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    watched = run(watched=True)
    assert plain[0] == watched[0]
    for name, value in plain[1].items():
        assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(watched[1][name])), name


#: At a captured step, and where the fast path is taken.
@pytest.mark.parametrize(("at", "interval"), [(3, 1), (30, 1), (30, 1000)])
@pytest.mark.parametrize("place", [0, 5])
def test_poisoned_weights_never_make_the_first_layer_guilty(tmp_path: Path, place: int, at: int, interval: int) -> None:
    training = Training(network())

    def poison(step: int) -> None:
        if step == at:
            with torch.no_grad():
                training.model[place].weight[0, 0] = math.nan  # type: ignore[index,operator]

    (found,) = facts_of(tmp_path / "run", training, poison, steps=at + 3, save_interval=interval)
    assert (found["level"], found["where"], found["tensor"]) == ("flags", "weights", f"{place}.weight")
    assert (found["optimizer"], found["updated_at"], found["at"]) == ("SGD", at - 1, at)
    assert found["sentence"].endswith(f"SGD last updated it at step {at - 1}")


@pytest.mark.parametrize(("at", "interval"), [(3, 1), (30, 1), (30, 1000)])
def test_poisoned_weights_are_named_where_only_a_gradient_shows_it(tmp_path: Path, at: int, interval: int) -> None:
    """An infinite weight before a sigmoid: the loss is finite, and the layer before is sent zero times infinity."""
    # Gradients are examined in every step, which else the budget decides.
    limits = CaptureLimits(norm_interval=1)
    torch.manual_seed(0)
    training = Training(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3)))

    def poison(step: int) -> None:
        if step == at:
            with torch.no_grad():
                training.model[1].weight[0, 0] = math.inf  # type: ignore[index,operator]
            assert math.isfinite(training.loss().item())

    with watching_within(limits, training.model, tmp_path / "run", save_interval=interval) as hook:
        for number in range(at + 3):
            with hook.port.guard.suspended():
                poison(number)
            training.step()
    run = open_run(tmp_path / "run")
    (fact,) = run.facts("first_bad_module")
    assert (fact.data["level"], fact.data["where"], fact.data["tensor"]) == ("flags", "weights", "1.weight")
    assert (fact.data["optimizer"], fact.data["updated_at"], fact.global_step) == ("SGD", at - 1, at)
    assert math.isfinite(run.scalars("loss")[1][at])


def test_weights_that_an_unseen_gradient_has_poisoned_are_blamed_on_its_update(tmp_path: Path) -> None:
    """Between captures nothing may look at gradients: then the next loss tells, and no module of it is guilty."""
    training = Training(network(Poisoned.apply))
    facts = facts_of(
        tmp_path / "run", training, lambda step: training.spoil(step >= 30), steps=33, save_interval=1000,
        limits=CaptureLimits(norm_share=0.0),
    )  # fmt: skip
    assert [(fact["level"], fact["where"], fact["at"]) for fact in facts] == [("flags", "weights", 31)]
    assert facts[0]["sentence"].endswith("was already not finite before this forward: SGD last updated it at step 30")


def test_weights_that_no_update_has_written_are_said_to_be_so(tmp_path: Path) -> None:
    training = Training(network())
    with torch.no_grad():
        training.model[0].bias[1] = math.inf  # type: ignore[index,operator]
    (found,) = facts_of(tmp_path / "run", training, lambda step: None)
    assert (found["where"], found["tensor"], found["at"]) == ("weights", "0.bias", 0)
    assert "no update has written it yet" in found["sentence"]


def test_finite_modules_and_a_loss_that_is_not(tmp_path: Path) -> None:
    training = Training(network())
    training.loss = lambda: F.cross_entropy(training.model(training.inputs), training.labels) / 0.0  # type: ignore[method-assign]
    found = facts_of(tmp_path / "run", training, lambda step: None)[0]
    assert (found["level"], found["where"], found["verified"]) == ("rerun", "loss", "outputs")
    assert "all modules are finite" in found["sentence"]


def test_what_is_masked_out_again_is_not_blamed_for_the_loss(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.odd = nn.Linear(6, 3), Bad(to_nan)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            return torch.where(self.odd(x).isnan(), x, x)  # type: ignore[no-any-return]

    training = Training(Masked())
    training.spoil()
    assert facts_of(tmp_path / "finite", training, lambda step: None) == []
    labels = torch.rand(16, 3)
    # The exponential of finite predictions is infinite.
    training.loss = lambda: F.poisson_nll_loss(training.model(training.inputs * 1e6), labels)  # type: ignore[method-assign]
    found = facts_of(tmp_path / "run", training, lambda step: None)[0]
    assert (found["level"], found["where"]) == ("rerun", "loss")
    assert "the result of poisson_nll_loss is not" in found["sentence"]


def test_data_that_is_not_finite_is_said_to_be_the_data(tmp_path: Path) -> None:
    training = Training(nn.Sequential(nn.Linear(6, 3)))

    def spoil(step: int) -> None:
        if step == 2:
            training.inputs = training.inputs.index_fill(0, torch.tensor(1), math.nan)

    found = facts_of(tmp_path / "run", training, spoil)[0]
    assert (found["where"], found["tensor"], found["refused"]) == ("input", "input.0", "")


@pytest.mark.parametrize("at", [3, 30])
def test_a_finite_loss_with_a_bad_gradient_is_followed_backwards(tmp_path: Path, at: int) -> None:
    # At step 30 forwards are no longer marked: the loss is computed again to know what it sent back.
    found = fact_of(tmp_path / "run", Training(network(Poisoned.apply)), at)
    assert (found["level"], found["where"], found["module"]) == ("rerun", "backward", "3")


def test_a_gradient_that_overflows_in_its_own_sum_is_its_parameters(tmp_path: Path) -> None:
    class Huge(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return torch.full_like(gradient, 1e38)

    model = nn.Sequential(nn.Linear(6, 3), Bad(Huge.apply))
    found = fact_of(tmp_path / "run", Training(model))
    assert (found["level"], found["where"], found["module"]) == ("rerun", "backward", "0")
    assert found["tensor"].startswith("gradient/0.")


def test_no_gradient_of_the_rerun_reaches_the_training(tmp_path: Path) -> None:
    def gradients(path: Path | None) -> list[Tensor]:
        training = Training(network(Poisoned.apply))
        if path is not None:
            fact_of(path, training)
        else:
            for step in range(6):
                training.spoil(step >= 3)
                training.step()
        return [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]

    for bare, watched in zip(gradients(None), gradients(tmp_path / "run"), strict=True):
        assert torch.equal(torch.nan_to_num(bare), torch.nan_to_num(watched))


class Drawing(nn.Module):
    """Draws from every global generator."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.linear, self.bad = nn.Linear(6, outputs), Bad(to_nan)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x) * (1 + random.random() + float(np.random.rand()))  # noqa: NPY002
        return torch.cat([x[:1], self.bad(x[1:])]) + torch.rand(())


@pytest.mark.parametrize("at", [1, 12, 33])
def test_a_forward_that_draws_random_numbers_draws_the_same_again(tmp_path: Path, at: int) -> None:
    # Later than the steps that are captured, only what the model was seen to draw from is recorded.
    found = fact_of(tmp_path / "run", Training(Drawing()), at, save_interval=4)
    assert (found["level"], found["module"]) == ("rerun", "bad")
    if at < 8:
        assert found["verified"] == "outputs"


def test_states_of_generators_that_a_model_does_not_draw_from_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    getstate = random.getstate
    monkeypatch.setattr(random, "getstate", lambda: taken.append(1) or getstate())
    training = Training(network())
    assert facts_of(tmp_path / "run", training, lambda step: None, steps=12) == []
    # Before and after each of the captured forwards that are examined.
    assert len(taken) == 8


def test_a_settings_change_after_the_forward_does_not_reach_the_rerun(tmp_path: Path) -> None:
    training = Training(network())

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = training.model(training.inputs)
        return F.cross_entropy(output.float(), training.labels)

    training.loss = loss  # type: ignore[method-assign]
    found = fact_of(tmp_path / "run", training)
    assert (found["level"], found["module"], found["verified"]) == ("rerun", "3", "outputs")
    assert not torch.is_autocast_enabled("cpu")


class Returning(nn.Module):
    """Returns its loss together with logits, as models of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(("at", "by"), [(3, "outputs"), (30, "loss")])
def test_a_model_that_returns_its_loss_is_verified_by_it(tmp_path: Path, at: int, by: str) -> None:
    # At step 30 the fast path is taken, which keeps nothing that a model returns.
    training = Training(Returning())
    training.loss = lambda: training.model(inputs=training.inputs, labels=training.labels)["loss"]  # type: ignore[method-assign]
    found = fact_of(tmp_path / "run", training, at, save_interval=1000)
    assert (found["level"], found["module"], found["verified"]) == ("rerun", "body.3", by)


def test_what_could_not_be_compared_is_said_to_be_unverified(tmp_path: Path) -> None:
    found = fact_of(tmp_path / "run", Training(network()), 30, save_interval=1000)
    assert (found["level"], found["where"], found["module"], found["verified"]) == ("rerun", "forward", "3", "")
    assert found["sentence"].endswith("could not be compared with the step itself")


def test_large_outputs_are_not_kept_and_the_loss_verifies(tmp_path: Path) -> None:
    found = fact_of(tmp_path / "run", Training(network()), limits=CaptureLimits(kept_forward_bytes=100))
    assert (found["level"], found["module"], found["verified"]) == ("rerun", "3", "loss")


def test_what_the_rerun_held_is_in_the_peak(tmp_path: Path) -> None:
    training = Training(nn.Sequential(nn.Linear(6, 4000), Bad(to_nan), nn.Linear(4000, 3)))
    with watchglass.watch(training.model, run=tmp_path / "run", save_interval=1000, strict=True) as hook:
        training.step()
        before = hook.port.cost.memory.peak.get("cpu", 0)
        training.spoil()
        training.step()
        assert hook.port.cost.memory.peak["cpu"] >= before + 16 * 4000 * 4


def test_outputs_that_were_changed_after_the_forward_are_not_compared(tmp_path: Path) -> None:
    training = Training(network())

    def loss() -> Tensor:
        output = training.model(training.inputs)
        with torch.no_grad():
            output.mul_(0.5)
        return F.cross_entropy(output, training.labels)

    training.loss = loss  # type: ignore[method-assign]
    found = fact_of(tmp_path / "run", training)
    assert (found["level"], found["module"], found["verified"]) == ("rerun", "3", "loss")


def test_the_finding_says_what_the_rerun_says(tmp_path: Path) -> None:
    fact_of(tmp_path / "run", Training(network()))
    (finding,) = (one for one in replay(tmp_path / "run").findings if one.rule == "ExplodingTensor")
    assert "3 (Bad) turned finite inputs" in finding.message
    assert finding.evidence["module"] == "3"


def test_several_micro_batches_are_distinguished(tmp_path: Path) -> None:
    training = Training(network(Poisoned.apply))
    plain = training.loss

    def step_with(bad: int) -> None:
        training.optimizer.zero_grad()
        for number in range(2):
            training.spoil(number == bad)
            plain().backward()
        training.spoil(False)
        training.optimizer.step()

    with watchglass.watch(training.model, run=tmp_path / "run", save_interval=1, strict=True):
        for number in range(5):
            step_with(0 if number == 3 else -1)
    (found, *_) = open_run(tmp_path / "run").facts("first_bad_module")
    assert found.data["level"] == "flags"
    assert "the step's last forward is finite" in found.data["refused"]
