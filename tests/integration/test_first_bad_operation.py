"""Which operation is named where a loss becomes NaN or infinite: sick runs of each kind, each with a mended twin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import open_run
from watchglass.evaluate import replay
from watchglass.records import FAULT_KINDS, Severity
from watchglass.rules import built_in_knowledge, default_rules

#: Makes a loss of outputs, float[16, 4] of magnitude about 1, and labels, int64[16].
Loss = Callable[[Tensor, Tensor], Tensor]
INFINITY = float("inf")
EMPTY = torch.zeros(16, dtype=torch.bool)
ROW = torch.zeros(16, 4, dtype=torch.bool).index_fill(0, torch.tensor(3), True)
LENGTHS = torch.full((2,), 8), torch.tensor([2, 9])


def ctc(outputs: Tensor, labels: Tensor, *, zero_infinity: bool) -> Tensor:
    steps = outputs.reshape(8, 2, 4).log_softmax(-1)
    return F.ctc_loss(steps, torch.tensor([[1, 2, 3] * 3] * 2), *LENGTHS, zero_infinity=zero_infinity)


def attention(outputs: Tensor, mask: Tensor, fill: float) -> Tensor:
    return (outputs.masked_fill(mask, fill).softmax(-1) * outputs).sum(-1)


class Case(NamedTuple):
    """One kind.

    Attributes:
        kind: Its name.
        sick: The loss, which makes it at step 3.
        mended: The same, mended.
        says: A part of the sentence.
    """

    kind: str
    sick: Loss
    mended: Loss
    says: str


CASES = [
    Case("log_of_softmax", lambda x, y: -(x * 1e3).softmax(-1).log().gather(1, y[:, None]).mean(),
         lambda x, y: F.cross_entropy(x * 1e3, y), "log was given a softmax with probabilities of zero"),
    Case("log_of_sigmoid", lambda x, y: -(1 - (x[:, 0] * 1e3).sigmoid()).log().mean(),
         lambda x, y: -F.logsigmoid(-x[:, 0] * 1e3).mean(), "log was given a sigmoid"),
    Case("log_of_zero", lambda x, y: -(x.relu()).log().mean(), lambda x, y: -(x.relu() + 1e-6).log().mean(),
         "log was given zero (values from 0 to"),
    Case("log_of_zero", lambda x, y: F.kl_div(x.relu().log(), torch.full((16, 4), 0.25), reduction="batchmean"),
         lambda x, y: F.kl_div(x.log_softmax(-1), torch.full((16, 4), 0.25), reduction="batchmean"), "log was given"),
    Case("log_of_negative", lambda x, y: x.log().mean(), lambda x, y: x.abs().clamp(min=1e-6).log().mean(),
         "log was given negative values"),
    Case("root_of_negative", lambda x, y: x.sqrt().mean(), lambda x, y: (x.relu() + 1e-6).sqrt().mean(),
         "sqrt was given negative values"),
    Case("root_of_negative", lambda x, y: (x**0.3).mean(), lambda x, y: ((x.relu() + 1e-6) ** 0.3).mean(),
         "pow with exponent 0.3 was given negative values"),
    Case("outside_domain", lambda x, y: (x * 10).acos().mean(), lambda x, y: x.tanh().mul(0.9).acos().mean(),
         "acos was given values outside its domain"),
    Case("division_by_zero", lambda x, y: (x / x.relu()).mean(), lambda x, y: (x / (x.relu() + 1e-3)).mean(),
         "div was given a divisor of zero"),
    Case("division_by_zero", lambda x, y: ((x - x) / (x - x).norm(dim=1, keepdim=True)).mean(),
         lambda x, y: F.normalize(x - x, dim=1).mean() + x.mean(), "div was given a divisor of zero"),
    Case("division_by_zero", lambda x, y: x.relu().reciprocal().mean(),
         lambda x, y: (x.relu() + 1e-3).reciprocal().mean(), "reciprocal was given a divisor of zero"),
    Case("mean_of_nothing", lambda x, y: (x.square() * EMPTY[:, None]).sum() / EMPTY.sum(),
         lambda x, y: (x.square() * EMPTY[:, None]).sum() / EMPTY.sum().clamp(min=1) + x.square().mean(),
         "a sum was divided by zero"),
    Case("mean_of_no_rows", lambda x, y: x[EMPTY].mean(),
         lambda x, y: x[EMPTY].sum() / max(1, int(EMPTY.sum())) + x.square().mean(), "a mean over no elements"),
    Case("labels_all_ignored", lambda x, y: F.cross_entropy(x, torch.full_like(y, -100)),
         lambda x, y: F.cross_entropy(x, torch.full_like(y, -100), reduction="sum") + F.cross_entropy(x, y),
         "all 16 labels are the ignored label -100"),
    Case("labels_weigh_nothing", lambda x, y: F.cross_entropy(x, y * 0, weight=torch.tensor([0.0, 1, 1, 1])),
         lambda x, y: F.cross_entropy(x, y * 0, weight=torch.tensor([0.1, 1, 1, 1])), "the weights of all 16 labels"),
    Case("exponential_overflow", lambda x, y: (x * 1e3).exp().mean(), lambda x, y: (x * 1e3).logsumexp(-1).mean(),
         "exp was given values above 88.7"),
    Case("float16_overflow", lambda x, y: (x * 100).half().exp().float().mean(),
         lambda x, y: (x * 3).half().exp().float().mean(), "the result of exp is beyond 65504"),
    Case("row_masked_whole", lambda x, y: attention(x, ROW, -INFINITY).mean(),
         lambda x, y: attention(x, ROW, -1e9).mean(), "1 of 16 rows of softmax are masked whole"),
    Case("row_masked_whole", lambda x, y: (x + torch.zeros(16, 4).masked_fill(ROW, -INFINITY)).log_softmax(-1).sum(-1)
         .square().mean(), lambda x, y: (x + torch.zeros(16, 4).masked_fill(ROW, -1e3)).log_softmax(-1).mean(),
         "1 of 16 rows of log_softmax are masked whole"),
    Case("target_too_long", lambda x, y: ctc(x, y, zero_infinity=False), lambda x, y: ctc(x, y, zero_infinity=True),
         "1 of 2 targets of ctc_loss do not fit into their inputs (a target of 9 labels, an input of 8 steps)"),
    Case("spread_of_one", lambda x, y: x[:1].var(0).mean(), lambda x, y: x[:1].var(0, correction=0).mean() + x.mean(),
         "var was taken of 1 element"),
    Case("product_overflow", lambda x, y: (x * 1e20 * (x * 1e20)).mean(), lambda x, y: (x * (x * 10)).mean(),
         "is beyond the largest number of float32"),
]  # fmt: skip
#: Not failures, though they look like one: PyTorch defines these.
FINE: list[Loss] = [
    lambda x, y: F.scaled_dot_product_attention(x, x, x, attn_mask=~ROW[:, :1].expand(16, 16)).mean(),
    lambda x, y: torch.cdist(x, x).mean(),
    lambda x, y: F.pairwise_distance(x, x, eps=0).mean() + x.mean(),
    lambda x, y: (x - x).norm(dim=1).mean() + x.mean(),
    lambda x, y: (x - x).std(1).mean() + x.mean(),
    lambda x, y: F.binary_cross_entropy((x[:, 0] * 1e3).sigmoid(), (x[:, 0].detach() < 0).float()),
]


#: Makes a loss of outputs and a factor, which is 1 at first.
Scaled = Callable[[Tensor, float], Tensor]
ONES = torch.ones(16, 4)


def positive(x: Tensor) -> Tensor:
    return torch.where(x > 30, x, x.exp().log1p())


def quotient(x: Tensor, divisor: Tensor) -> Tensor:
    return torch.where(divisor > 0, x / divisor, x)


def safe_quotient(x: Tensor, divisor: Tensor) -> Tensor:
    return torch.where(divisor > 0, x / torch.where(divisor > 0, divisor, ONES), x)


def root(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.sqrt(), x)


def safe_root(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.where(x > 0, x, ONES).sqrt(), x)


class Gradient(NamedTuple):
    """A loss that is finite, with a gradient that is not.

    Attributes:
        kind: Its name.
        factor: The factor that makes its gradient infinite.
        sick: The loss.
        mended: The same, mended.
        says: A part of the sentence.
    """

    kind: str
    factor: float
    sick: Scaled
    mended: Scaled
    says: str


GRADIENTS = [
    Gradient("root_at_zero", 0, lambda x, g: (x * g).square().sum(1).sqrt().mean(),
             lambda x, g: ((x * g).square().sum(1) + 1e-8).sqrt().mean(), "sqrt was given zero (values from 0 to 0)"),
    Gradient("root_at_zero", 0, lambda x, g: ((x * g).square() ** 0.5).mean(),
             lambda x, g: (((x * g).square() + 1e-8) ** 0.5).mean(), "pow with exponent 0.5 was given zero"),
    Gradient("end_of_domain", 0, lambda x, g: (x.tanh() * g * 0.5 + (1 - g)).acos().mean(),
             lambda x, g: (x.tanh() * g * 0.5 + (1 - g)).clamp(-0.999, 0.999).acos().mean(),
             "acos was given the end of its domain (values from 1 to 1)"),
    Gradient("log_of_zero", 0, lambda x, g: torch.xlogy(x.square() * g, x.square() * g).mean(),
             lambda x, g: torch.special.entr(x.square() * g + 1e-8).mean(), "xlogy was given zero"),
    Gradient("untaken_branch", 1e4, lambda x, g: positive(x * g).mean(), lambda x, g: F.softplus(x * g).mean(),
             "exp of values above 88.7 in the branch that `where` did not take"),
    Gradient("untaken_branch", 0, lambda x, g: quotient(x, x * g).mean(), lambda x, g: safe_quotient(x, x * g).mean(),
             "div in the branch"),
    Gradient("untaken_branch", 0, lambda x, g: root((x * g).square()).mean(),
             lambda x, g: safe_root((x * g).square()).mean(), "sqrt in the branch"),
    Gradient("exponential_overflow", 1e4, lambda x, g: (1 / (1 + (x * g).exp())).mean(),
             lambda x, g: (x * -g).sigmoid().mean(), "exp was given values above 88.7"),
]  # fmt: skip


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def train(path: Path, model: nn.Module, loss: Loss, *, steps: int = 6, at: int = 3, interval: int = 1000) -> None:
    """Train watched with a squared error; from step ``at`` on, add a loss."""
    torch.manual_seed(3)
    inputs, labels = torch.randn(16, 6), torch.randint(0, 4, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    # Steps are so short that looks would not be affordable in each.
    with watchglass.watch(model, run=path, save_interval=interval, overhead_budget=0.9, strict=True):
        for step in range(steps):
            outputs = model(inputs)
            value = outputs.square().mean()
            if step >= at:
                value = value + loss(outputs, labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    assert not open_run(path).facts("capture_fault")


def operations(path: Path) -> list[dict[str, Any]]:
    """Data of the facts that name an operation."""
    facts = open_run(path).facts("first_bad_module")
    return [{**fact.data["operation"], "at": fact.global_step, "fact": fact.data} for fact in facts
            if "operation" in fact.data]  # fmt: skip


@pytest.mark.filterwarnings(r"ignore:var\(\). degrees of freedom")
# At step 20 the fast path is taken.
@pytest.mark.parametrize(("case", "at"), [*[(case, 3) for case in CASES], (CASES[0], 20), (CASES[13], 20)])
def test_the_operation_of_a_loss_that_the_script_wrote_is_named(tmp_path: Path, case: Case, at: int) -> None:
    train(tmp_path / "run", network(), case.sick, at=at, steps=at + 2)
    found = operations(tmp_path / "run")[0]
    assert (found["kind"], found["at"], found["backward"]) == (case.kind, at, False)
    assert case.says in found["fact"]["sentence"]
    result = replay(tmp_path / "run", default_rules()[:1])
    finding = result.findings[0]
    assert (finding.rule, finding.step) == ("ExplodingTensor", at)
    assert case.says in finding.message
    assert finding.symptoms[0] == case.kind
    assert finding.severity is (Severity.WARNING if FAULT_KINDS[found["kind"]].harmless else Severity.ERROR)


def test_the_mended_twins_are_silent(tmp_path: Path) -> None:
    losses = [*[case.mended for case in CASES], *FINE]

    def all_of_them(outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([loss(outputs, labels) for loss in losses]).mean()

    train(tmp_path / "run", network(), all_of_them, interval=1, at=0)
    assert open_run(tmp_path / "run").facts("first_bad_module") == []
    assert replay(tmp_path / "run", default_rules()[:1]).findings == ()


def test_a_loss_that_is_nan_without_harm_does_not_end_the_search(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) < 3:
            return F.cross_entropy(outputs, torch.full_like(labels, -100))
        return outputs.relu().log().mean()

    calls: list[int] = []
    train(tmp_path / "run", network(), loss)
    found = operations(tmp_path / "run")
    assert [(each["kind"], each["at"]) for each in found] == [
        ("labels_all_ignored", 3), ("labels_all_ignored", 4), ("log_of_zero", 5),
    ]  # fmt: skip
    findings = replay(tmp_path / "run", default_rules()[:1]).findings
    assert [(each.severity, each.step, each.count) for each in findings] == [
        (Severity.WARNING, 3, 2), (Severity.ERROR, 5, 1),
    ]  # fmt: skip


def test_the_operation_inside_a_module_is_named_with_the_module(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.hides = nn.Linear(6, 4), False

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            return x.masked_fill(ROW, -INFINITY).softmax(-1) if self.hides else x

    model = Attention()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        model.hides = True
        return outputs.mean()

    train(tmp_path / "run", model, loss)
    (found,) = operations(tmp_path / "run")
    assert (found["kind"], found["fact"]["where"], found["fact"]["module"]) == ("row_masked_whole", "forward", "")
    assert "the model itself (Attention) turned finite inputs" in found["fact"]["sentence"]
    assert found["code"] == "return x.masked_fill(ROW, -INFINITY).softmax(-1) if self.hides else x"


def test_the_operation_is_named_where_the_forward_cannot_run_again(tmp_path: Path) -> None:
    class Iterating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x: Tensor, more: Iterator[float]) -> Tensor:
            return self.linear(x) * next(more)  # type: ignore[no-any-return]

    model = Iterating()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        for step in range(4):
            outputs = model(torch.randn(16, 6), iter([1.0]))
            optimizer.zero_grad()
            (outputs.relu().log() if step == 3 else outputs).mean().backward()
            optimizer.step()
    (found,) = operations(tmp_path / "run")
    assert (found["kind"], found["fact"]["level"], found["fact"]["refused"]) == ("log_of_zero", "graph", "")


def test_every_kind_has_a_cause_of_its_own() -> None:
    knowledge = built_in_knowledge()
    for kind in FAULT_KINDS:
        assert kind in knowledge.symptoms
        assert knowledge.likely([kind]), kind
        assert knowledge.symptoms[kind].breaks is not FAULT_KINDS[kind].harmless


def spoilt_from(at: int, loss: Scaled, factor: float) -> Loss:
    """A loss with a factor, from this call on."""
    calls: list[int] = []

    def spoilt(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(1)
        return loss(outputs, factor if len(calls) > at else 1.0)

    return spoilt


# At step 20 the fast path is taken; with an interval of 1 the step is captured.
@pytest.mark.parametrize(("case", "at", "interval"), [
    *[(case, 20, 1000) for case in GRADIENTS], (GRADIENTS[0], 4, 1), (GRADIENTS[4], 4, 1),
])  # fmt: skip
def test_a_gradient_that_is_not_finite_is_explained_before_it_is_lost(
    tmp_path: Path, case: Gradient, at: int, interval: int
) -> None:
    loss = spoilt_from(at, case.sick, case.factor)
    train(tmp_path / "run", network(), loss, at=0, steps=at + 3, interval=interval)
    (found,) = operations(tmp_path / "run")
    assert (found["kind"], found["at"], found["backward"]) == (case.kind, at, True)
    assert found["fact"]["sentence"].startswith("the loss is finite, but ")
    assert case.says in found["fact"]["sentence"]
    assert found["place"].startswith("test_first_bad_operation.py, line ")
    (finding,) = replay(tmp_path / "run", default_rules()[:1]).findings
    assert (finding.rule, finding.step, finding.symptoms[0]) == ("ExplodingTensor", at, case.kind)


def test_the_mended_gradients_are_silent_and_stay_on_the_fast_path(tmp_path: Path) -> None:
    def all_of_them(outputs: Tensor, factor: float) -> Tensor:
        return torch.stack([case.mended(outputs, 1.0 if factor == 1 else case.factor) for case in GRADIENTS]).mean()

    train(tmp_path / "run", network(), spoilt_from(20, all_of_them, 0.0), at=0, steps=40)
    run = open_run(tmp_path / "run")
    assert run.facts("first_bad_module") == []
    assert replay(tmp_path / "run", default_rules()[:1]).findings == ()


class Positive(nn.Module):
    """A network that ends in a softplus of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.factor = network(), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return positive(self.body(x) * self.factor)


def test_an_operation_inside_a_model_is_named_with_its_line(tmp_path: Path) -> None:
    model = Positive()
    calls: list[int] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(1)
        # Of the next step.
        model.factor = 1e4 if len(calls) == 20 else 1.0
        return outputs.mean()

    train(tmp_path / "run", model, loss, at=0, steps=22, interval=8)
    (found,) = operations(tmp_path / "run")
    assert (found["kind"], found["at"], found["operation"]) == ("untaken_branch", 20, "exp of values above 88.7")
    assert found["code"] == "return torch.where(x > 30, x, x.exp().log1p())"


def test_a_zero_whose_gradient_is_discarded_alarms_only_a_few_times(tmp_path: Path) -> None:
    """The root of what is masked out is cut off from the graph by the mask: its gradient goes nowhere."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        leaf = (outputs * 0).square().sum(1)
        leaf.register_hook(torch.zeros_like)
        return leaf.sqrt().mean() + outputs.mean()

    train(tmp_path / "run", network(), loss, at=0, steps=60)
    run = open_run(tmp_path / "run")
    assert run.facts("first_bad_module") == []
    assert run.facts("nonfinite_gradients") == []


def test_stacks_are_noted_in_a_few_steps_only_and_the_mode_of_the_script_stays(tmp_path: Path) -> None:
    noted: list[bool] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        noted.append(torch.is_anomaly_enabled())
        return (outputs.square() + 1e-6).sqrt().mean()

    train(tmp_path / "run", network(), loss, at=0, steps=12, interval=1)
    # The first graphs are read, then one in each doubling of the steps.
    assert [step for step, on in enumerate(noted) if on] == [0, 1, 2, 6]
    assert not torch.is_anomaly_enabled()
    noted.clear()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        train(tmp_path / "own", network(), loss, at=0, steps=4, interval=1)
        assert noted == [True] * 4
        assert torch.is_anomaly_enabled()


def test_anomaly_detection_that_a_script_turns_on_between_forward_and_backward_stays_on(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        torch.autograd.set_detect_anomaly(True)
        return (outputs.square() + 1e-6).sqrt().mean()

    try:
        train(tmp_path / "run", network(), loss, at=0, steps=1, interval=1)
        assert torch.is_anomaly_enabled()
        assert torch.is_anomaly_check_nan_enabled()
    finally:
        torch.autograd.set_detect_anomaly(False)


def test_looks_at_operations_change_no_number(tmp_path: Path) -> None:
    def run(watched: bool) -> list[Tensor]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(3)
        around = watchglass.watch(model, run=tmp_path / "run", save_interval=5) if watched else contextlib.nullcontext()
        with around:
            for _ in range(30):
                outputs = model(torch.randn(16, 6))
                loss = root(outputs.square()).mean() + positive(outputs).mean() + (outputs.square() ** 0.5).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return [each.detach() for each in model.parameters()]

    for bare, watched in zip(run(watched=False), run(watched=True), strict=True):
        assert torch.equal(bare, watched)
