"""Training flags, what the optimizers own, and what losses are called with, as facts."""

from __future__ import annotations

import inspect
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facts_of import batch, classifier, facts, facts_by_step, watching
from watchglass import Mode
from watchglass.capture import Hook, attach, loop
from watchglass.capture.pytorch.facts.batches import Batches
from watchglass.capture.pytorch.facts.call_order import CallOrderFact
from watchglass.capture.pytorch.facts.clips import ClipCalls
from watchglass.capture.pytorch.facts.copies import Sample
from watchglass.capture.pytorch.facts.leftover_gradients import Leftovers
from watchglass.capture.pytorch.facts.loss_calls import LossCallFact
from watchglass.capture.pytorch.facts.loss_scales import LossScales
from watchglass.capture.pytorch.facts.model_structure import MembershipFact, TrainingFlagsFact
from watchglass.config import FACTS, chosen_facts


def step(model: nn.Module, *optimizers: torch.optim.Optimizer, number: int = 0) -> None:
    inputs, labels = batch(number)
    for optimizer in optimizers:
        optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    for optimizer in optimizers:
        optimizer.step()


# -- training flags ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save_interval", [1, 1000])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_model_that_is_evaluated_in_training_mode_shows(run_path: Path, save_interval: int, forgotten: bool) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=save_interval):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(30):
            step(model, optimizer, number=number)
            if number % 10 == 9:
                model.train(forgotten and number == 19)
                with torch.no_grad():
                    for _ in range(3):
                        model(batch(number)[0])
                model.train()
    found = facts_by_step(run_path, "training_flags", Mode.EVAL)
    expected = {0: False, 3: True, 6: False} if forgotten else {0: False}
    assert {at: data["training"] for at, data in found.items()} == expected
    assert found[0]["sensitive"] == {"BatchNorm1d": [0, 1], "Dropout": [0, 1]}
    trained = facts_by_step(run_path, "training_flags", Mode.TRAIN)
    assert {at: data["training"] for at, data in trained.items()} == {0: True}
    assert trained[0]["sensitive"] == {"BatchNorm1d": [1, 0], "Dropout": [1, 0]}


def test_training_in_evaluation_mode_shows(run_path: Path) -> None:
    model = classifier().eval()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            step(model, optimizer, number=number)
    (found,) = facts(run_path, "training_flags")
    assert found["training"] is False
    assert found["in_training"] == 0
    assert found["model"] == "Sequential"


def test_flags_of_a_frozen_encoder_are_marked(run_path: Path) -> None:
    encoder, head = classifier(), nn.Linear(3, 3)

    def frozen(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = encoder(inputs)
        probed: Tensor = head(hidden)
        return probed

    with Hook(run_path, save_interval=1, strict=True, facts=("training_flags",)) as hook:
        attach(hook.port, loop("torch"))
        for model, forward in ((encoder, encoder), (head, frozen)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for number in range(12):
                inputs, labels = batch(number)
                optimizer.zero_grad()
                F.cross_entropy(forward(inputs), labels).backward()
                optimizer.step()
            encoder.eval()
    flags = facts(run_path, "training_flags")
    expected = {("Sequential", True, True), ("Sequential", False, False), ("Linear", True, True)}
    assert {(data["model"], data["training"], data["gradients"]) for data in flags} == expected


def test_parts_in_another_mode_are_named_once_for_all_below_them(run_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = classifier()
            self.head = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.body(x))
            return output

    model = Model()
    model.body.eval()
    model.body[3].train()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer)
    (found,) = facts(run_path, "training_flags")
    assert found["different"] == [["body", "Sequential", False], ["body.3", "Dropout", True]]
    assert found["sensitive"] == {"BatchNorm1d": [0, 1], "Dropout": [1, 0]}


def test_a_dropout_that_drops_nothing_is_not_sensitive(run_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.0), nn.LSTM(3, 3, dropout=0.0))
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 6))[0].sum().backward()
        optimizer.step()
    assert facts(run_path, "training_flags")[0]["sensitive"] == {}


# -- membership -------------------------------------------------------------------------------------------------------


def membership(run: Path) -> dict[str, Any]:
    return facts(run, "membership")[-1]


def test_an_optimizer_of_all_parameters_is_nothing_special(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            step(model, optimizer)
    (found,) = facts(run_path, "membership")
    assert found["left_out"] == {"count": 0, "names": []}
    assert found["twice"] == {"count": 0, "names": []}
    assert found["trainable"] == 6
    assert found["optimizers"]["optimizer"]["foreign"] == 0


def test_parameters_that_no_optimizer_has_are_named(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer)
    found = membership(run_path)
    assert found["left_out"]["names"] == ["1.weight", "1.bias", "4.weight", "4.bias"]
    assert found["left_out_with_gradient"] == 4
    assert found["left_out_beside"] == found["left_out"]


def test_parameters_that_are_unfrozen_late_are_named(run_path: Path) -> None:
    model = classifier()
    model[4].requires_grad_(False)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    with watching(model, run_path):
        for number in range(12):
            model[4].requires_grad_(number >= 9)  # behind the eighth capture, ahead of the sixteenth
            step(model, optimizer)
    assert [(at, data["left_out_beside"]["names"]) for at, data in facts_by_step(run_path, "membership").items()] == [
        (0, []),
        (9, ["4.weight", "4.bias"]),
    ]


def test_an_optimizer_that_is_never_called_holds_its_parameters(run_path: Path) -> None:
    model = classifier()
    optimizer, idle = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[1:]))
    with watching(model, run_path):
        for _ in range(3):
            step(model, optimizer)
    assert membership(run_path)["left_out"]["count"] == 0
    del idle


def test_parameters_of_the_stepped_optimizer_without_a_gradient_are_named(run_path: Path) -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "unused": nn.Linear(6, 3)})
    model.forward = lambda inputs: model["used"](inputs)  # type: ignore[method-assign]
    with watching(model, run_path):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = membership(run_path)
    assert found["stepped"] == "optimizer"
    assert found["without_gradient"]["names"] == ["unused.weight", "unused.bias"]


def test_parameters_of_no_model_are_counted(run_path: Path) -> None:
    model, other = classifier(), nn.Linear(5, 7)
    with watching(model, run_path):
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
        step(model, optimizer)
    found = membership(run_path)["optimizers"]["optimizer"]
    assert (found["parameters"], found["foreign"], found["foreign_with_gradient"]) == (8, 2, 0)
    assert found["foreign_shapes"] == [[7, 5], [7]]


def test_an_optimizer_of_another_model_altogether_is_reported(run_path: Path) -> None:
    model, stale = classifier(), classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(stale.parameters(), lr=0.1)
        for number in range(10):
            step(model, optimizer, number=number)
    found = membership(run_path)
    assert found["optimizers"]["optimizer"]["foreign"] == 6
    assert found["left_out"]["count"] == 6
    assert found["left_out_with_gradient"] == 6
    assert found["left_out_beside"]["count"] == 0


def test_two_optimizers_share_a_model(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        second = torch.optim.Adam([*model[1].parameters(), *model[4].parameters(), model[0].bias], lr=0.1)
        for _ in range(3):
            step(model, first, second)
    found = membership(run_path)
    assert found["left_out"]["count"] == 0
    assert found["twice"]["names"] == ["0.bias"]
    assert {name: row["type"] for name, row in found["optimizers"].items()} == {
        "optimizer": "SGD",
        "optimizer_2": "Adam",
    }


def test_frozen_parameters_and_what_becomes_of_them(run_path: Path) -> None:
    model = classifier()
    model[0].requires_grad_(False)
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(16):
            if number == 5:
                model[0].requires_grad_(True)
            step(model, optimizer)
    frozen = [found["optimizers"]["optimizer"]["frozen"]["names"] for found in facts(run_path, "membership")]
    assert frozen == [["0.weight", "0.bias"], []]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_frozen_weights_that_are_as_an_initializer_drew_them(run_path: Path, dtype: torch.dtype) -> None:
    with Hook(run_path, save_interval=1) as hook:
        attach(hook.port, loop("torch"))
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 16, dtype=dtype)).square().mean().backward()
            optimizer.step()
    found = membership(run_path)
    assert (found["drawn"], found["written_once"]) == (["0.weight"], [])


def _by_data(weight: Tensor) -> None:
    weight.data.normal_(0, 0.02)


def _cut_off(weight: Tensor) -> None:
    """As timm does."""
    with torch.no_grad():
        weight.uniform_(-0.95, 0.95).erfinv_().mul_(0.02 * 2**0.5).add_(0.001).clamp_(-0.04, 0.04)


def _scaled(weight: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(torch.empty(weight.shape).normal_() / 16)


def _loaded(weight: Tensor) -> None:
    """The same values as those of another random generator."""
    values = np.random.default_rng(1).normal(0, 0.02, weight.shape)
    weight.data.copy_(torch.as_tensor(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("draw", "drawn"), [(_by_data, True), (_cut_off, True), (_scaled, True), (_loaded, False), (nn.init.zeros_, False)]
)
def test_frozen_weights_that_were_drawn_by_methods_of_tensors(
    run_path: Path, draw: Callable[[Tensor], object], drawn: bool, dtype: torch.dtype
) -> None:
    before = torch.Tensor.normal_, torch.Tensor.uniform_
    with Hook(run_path, save_interval=1) as hook:
        attach(hook.port, loop("torch"))
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        draw(model[0].weight)
        model[0].requires_grad_(False)
        model = model.to(dtype)
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 16, dtype=dtype)).square().mean().backward()
            optimizer.step()
            assert (torch.Tensor.normal_, torch.Tensor.uniform_) == before, "the noise of steps is not observed"
    assert (membership(run_path)["drawn"] == ["0.weight"]) is drawn


def test_drawn_weights_are_not_read_while_they_are_drawn(monkeypatch: pytest.MonkeyPatch, run_path: Path) -> None:
    """On a device reading a value waits for all that it has to do."""
    unobserved = torch.Tensor.normal_, nn.init.normal_
    with Hook(run_path, save_interval=1) as hook:
        attach(hook.port, loop("torch"))
        nn.Linear(4, 4)  # the first module attaches the adapter
        assert torch.Tensor.normal_ is not unobserved[0]
        assert nn.init.normal_ is not unobserved[1]
        for name in ("tolist", "item", "cpu", "numpy"):
            monkeypatch.setattr(torch.Tensor, name, lambda *args: pytest.fail("waits for a device"))
        monkeypatch.setattr(torch.Tensor, "is_cpu", False, raising=False)
        nn.init.normal_(torch.empty(16, 16))
        torch.empty(16, 16).normal_()
        monkeypatch.undo()


def test_of_a_model_made_before_it_is_watched_the_writes_are_counted(run_path: Path) -> None:
    model = classifier()
    model[1].load_state_dict(model[1].state_dict())
    model.requires_grad_(False)[4].requires_grad_(True)
    with watching(model, run_path):
        step(model, torch.optim.SGD(model[4].parameters(), lr=0.1))
    found = membership(run_path)
    assert (found["drawn"], found["written_once"]) == ([], ["0.weight"])


def test_groups_that_are_added_are_seen_at_the_next_capture(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=2):
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for number in range(10):
            if number == 5:
                optimizer.add_param_group({"params": [*model[1].parameters(), *model[4].parameters()]})
            step(model, optimizer)
    left_out = {at: data["left_out"]["count"] for at, data in facts_by_step(run_path, "membership").items()}
    assert left_out == {0: 4, 6: 0}


# -- calls of losses --------------------------------------------------------------------------------------------------

Loss = Callable[[Tensor, Tensor], Tensor]


def loss_facts(run: Path, model: nn.Module, loss: Callable[[Tensor], Tensor], sizes: list[int]) -> list[Any]:
    with watching(model, run):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for size in sizes:
            optimizer.zero_grad()
            loss(model(torch.randn(size, 6))).backward()
            optimizer.step()
    return facts(run, "loss_call")


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_shapes_that_broadcast_to_more_than_either_are_reported(run_path: Path) -> None:
    found = loss_facts(run_path, nn.Linear(6, 1), lambda output: F.mse_loss(output, torch.randn(len(output))), [16, 16])
    assert len(found) == 1
    assert found[0]["arguments"]["input"] == {"shape": [16, 1], "dtype": "float32"}
    assert found[0]["arguments"]["target"] == {"shape": [16], "dtype": "float32"}
    assert found[0]["broadcast"] == [16, 16]


def test_shapes_that_fit_are_said_once_whatever_the_batch_size(run_path: Path) -> None:
    found = loss_facts(
        run_path, nn.Linear(6, 2), lambda output: F.mse_loss(output, torch.randn(len(output), 2)), [16, 16, 7, 9, 16]
    )
    assert [data.get("broadcast") for data in found] == [None]


ONES = torch.ones(16, 3)


@pytest.mark.parametrize(
    ("last", "loss", "operation"),
    [
        (nn.Softmax(1), lambda output: F.cross_entropy(output, output.argmax(1)), "softmax"),
        (nn.Sigmoid(), lambda output: F.binary_cross_entropy_with_logits(output, ONES), "sigmoid"),
        (nn.Identity(), lambda output: F.cross_entropy(output, output.argmax(1)), "weighted_sum"),
        (nn.Sigmoid(), lambda output: F.mse_loss(output[None].squeeze(0), ONES), "sigmoid"),
    ],
)
def test_what_made_the_predictions_is_reported(run_path: Path, last: nn.Module, loss: Any, operation: str) -> None:
    (found,) = loss_facts(run_path, nn.Sequential(nn.Linear(6, 3), last), loss, [16, 16])
    assert found["operation"] == operation
    assert found.get("normalized_over") == (3 if operation == "softmax" else None)


@pytest.mark.parametrize(("axis", "size"), [(1, 1), (-1, 1), (0, 16)])
def test_the_axis_of_a_softmax_is_known_behind_a_squeeze(run_path: Path, axis: int, size: int) -> None:
    found = loss_facts(
        run_path, nn.Linear(6, 1), lambda out: F.mse_loss(out.softmax(axis).squeeze(1), torch.ones(16)), [16, 16]
    )
    assert [data.get("normalized_over") for data in found] == [size]


def test_a_loss_that_changes_is_said_again(run_path: Path) -> None:
    calls = iter([0, 0, 1, 1])

    def loss(output: Tensor) -> Tensor:
        target = torch.zeros(16, dtype=torch.long) if next(calls) else torch.full((16, 3), 1 / 3)
        return F.cross_entropy(output, target, reduction="sum")

    found = loss_facts(run_path, nn.Linear(6, 3), loss, [16] * 4)
    assert [data["arguments"]["target"]["dtype"] for data in found] == ["float32", "int64"]
    assert found[0]["reduction"] == "sum"


# -- switches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [(), ("membership",), ("calls", "batch"), ("data_loader", "input_sketch")])
def test_only_what_is_asked_for_is_recorded(run_path: Path, chosen: tuple[str, ...]) -> None:
    model = classifier()
    with watching(model, run_path, facts=chosen):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch()), batch_size=8)
        for inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert {kind for kind in FACTS if facts(run_path, kind)} == set(chosen)


def test_what_is_on_by_default_is_recorded(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, facts=None):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch()), batch_size=8)
        for number, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(inputs), labels) * (float("inf") if number else 1.0)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        torch.save(model.state_dict(), io.BytesIO())
    # All parameters that a backward reaches are in the optimizer, there is one process, no token and no evaluation.
    assert {kind for kind in FACTS if facts(run_path, kind)} == chosen_facts(None) - {
        "unheld_parameters", "rank_gradients", "token_targets", "rows_seen_in_training",
    }  # fmt: skip


def test_settings_that_change_before_the_first_step_count(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path) as hook:
        hook.port.reconfigure(hook.port.config.with_settings({"facts": ("loss_call",)}))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer)
    assert {kind for kind in FACTS if facts(run_path, kind)} == {"loss_call"}


def train(model: nn.Module) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data = torch.utils.data.TensorDataset(*batch())
    losses = []
    for _ in range(8):
        for inputs, labels in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        scheduler.step()
    return losses


@pytest.mark.parametrize("interval", [1, 4])
def test_a_training_run_whose_facts_are_recorded_is_bit_identical(run_path: Path, interval: int) -> None:
    plain, watched = classifier(), classifier()
    expected = train(plain)
    with watching(watched, run_path, save_interval=interval):
        assert train(watched) == expected
    for (name, value), other in zip(plain.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(value, other), name


def broken(original: Callable[..., Any], reached: set[str], begun: threading.Event) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not begun.is_set():
            return original(*args, **kwargs)
        reached.add(original.__name__)
        raise RuntimeError("injected")

    return call


@pytest.mark.parametrize(
    "part",
    [
        Batches, CallOrderFact, ClipCalls, Leftovers, LossCallFact, LossScales, MembershipFact, TrainingFlagsFact,
        Sample,
    ],
)  # fmt: skip
def test_a_fault_in_a_fact_leaves_the_training_as_it_was(
    run_path: Path, part: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(classifier())
    reached: set[str] = set()
    for name in [name for name, value in vars(part).items() if inspect.isfunction(value) and name != "__init__"]:
        model, begun = classifier(), threading.Event()
        with monkeypatch.context() as patch:
            patch.setattr(part, name, broken(getattr(part, name), reached, begun))
            with watching(model, run_path / name, strict=False):
                begun.set()
                assert train(model) == expected, name
    assert reached
