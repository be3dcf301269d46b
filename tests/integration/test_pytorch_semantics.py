"""What is captured of real PyTorch training runs, and what they do not notice of it."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import Mode, Run, open_run

Data = tuple[Tensor, Tensor]


@pytest.fixture
def data() -> Data:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(64, 12, generator=generator)
    return inputs, inputs[:, :4].argmax(1)


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(12, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )


def train(model: nn.Module, data: Data, steps: int, *, after: Callable[[], None] = lambda: None) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for number in range(steps):
        rows = slice(16 * (number % 4), 16 * (number % 4) + 16)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[0][rows]), data[1][rows])
        loss.backward()
        after()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_l2(run: Run, name: str) -> dict[int, float]:
    steps, values = run.tensor(name).reductions("l2")
    return {int(step): float(value) for step, value in zip(steps, values, strict=True)}


def no_gradient_repeats(run: Run) -> bool:
    for name in run.tensor_names(role="gradient"):
        values = list(run_l2(run, name).values())
        if any(a == b and a != 0 for a, b in itertools.pairwise(values)):
            return False
    return True


def test_a_watched_training_is_bit_identical_to_an_unwatched_one(tmp_path: Path, data: Data) -> None:
    plain, watched = classifier(), classifier()
    torch.manual_seed(1)
    expected = train(plain, data, 30)
    torch.manual_seed(1)
    with watchglass.watch(watched, run=tmp_path / "run", save_interval=1, strict=True):
        losses = train(watched, data, 30)
    assert losses == expected
    for (name, value), other in zip(plain.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(30))
    np.testing.assert_array_equal(run.scalars("loss")[1], expected)


def test_statistics_are_those_of_the_tensors_at_the_update_point(tmp_path: Path, data: Data) -> None:
    model = nn.Linear(12, 4)
    before = model.weight.detach().clone()
    seen: list[Tensor] = []
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        train(model, data, 1, after=lambda: seen.append(model.weight.grad.detach().clone()))  # type: ignore[union-attr]
    run = open_run(tmp_path / "run")
    for name, tensor in (
        ("weight", before),
        ("gradient/weight", seen[0]),
        ("update/weight", model.weight.detach() - before),
    ):
        values = tensor.double().numpy()
        assert run.tensor(name).reduction(0, "mean") == pytest.approx(values.mean(), rel=1e-12)
        assert run.tensor(name).reduction(0, "std") == pytest.approx(values.std(), rel=1e-9)
        assert run.tensor(name).reduction(0, "min") == values.min()
        assert run.tensor(name).reduction(0, "l2") == pytest.approx(np.linalg.norm(values), rel=1e-12)


def test_micro_batches_are_one_step_with_the_accumulated_gradient(tmp_path: Path, data: Data) -> None:
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            for part in range(4):
                rows = slice(16 * part, 16 * part + 16)
                (F.cross_entropy(model(data[0][rows]), data[1][rows]) / 4).backward()
            norms.append(float(model.weight.grad.norm()))  # type: ignore[union-attr]
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2]
    assert list(run_l2(run, "gradient/weight").values()) == pytest.approx(norms)
    assert no_gradient_repeats(run)


def test_a_gradient_that_no_backward_touched_is_absent_not_old(tmp_path: Path, data: Data) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Linear(12, 4)
            self.right = nn.Linear(12, 4)
            self.use_right = True

        def forward(self, x: Tensor) -> Tensor:
            return self.right(x) if self.use_right else self.left(x)  # type: ignore[no-any-return]

    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for number in range(4):
            model.use_right = number % 2 == 1
            # No zero_grad: the gradient of the branch not taken stays where it was.
            F.cross_entropy(model(data[0]), data[1]).backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert list(run_l2(run, "gradient/left.weight")) == [0, 2]
    assert list(run_l2(run, "gradient/right.weight")) == [1, 3]


def test_evaluation_is_found_by_use_and_weighted_by_batch_size(tmp_path: Path, data: Data) -> None:
    model = classifier()
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        train(model, data, 5)
        model.eval()
        with torch.no_grad():
            outputs = [model(part) for part in data[0].split(40)]
            for output, labels in zip(outputs, data[1].split(40), strict=True):
                del output, labels
            for part, labels in zip(data[0].split(40), data[1].split(40), strict=True):
                F.cross_entropy(model(part), labels)
        model.train()
        train(model, data, 5)
    run = open_run(tmp_path / "run")
    assert len(run.steps(Mode.TRAIN)) == 10
    assert len(run.steps(Mode.EVAL)) == 4
    whole = torch.cat(outputs)
    stretch = run.stretches(Mode.EVAL)[0]
    assert stretch.means["accuracy"] == pytest.approx(float((whole.argmax(1) == data[1]).float().mean()), abs=1e-6)
    assert stretch.means["loss"] == pytest.approx(float(F.cross_entropy(whole, data[1])), rel=1e-6)


@pytest.mark.parametrize("steps", [3, 30])
@pytest.mark.parametrize("forgot_eval", [True, False])
def test_an_evaluation_that_forgot_no_grad_is_still_evaluation(
    tmp_path: Path, data: Data, steps: int, forgot_eval: bool
) -> None:
    # After 30 steps forwards are no longer marked, and it must still show which of them were trained on.
    model = classifier()
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        train(model, data, steps)
        model.train(forgot_eval)
        for _ in range(5):
            F.cross_entropy(model(data[0]), data[1])
        model.train()
        train(model, data, steps)
    run = open_run(tmp_path / "run")
    assert (len(run.steps(Mode.TRAIN)), len(run.steps(Mode.EVAL))) == (2 * steps, 5)


def test_a_loss_that_gets_a_further_term_midway_is_still_found(tmp_path: Path, data: Data) -> None:
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        for step in range(40):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data[0]), data[1])
            if step >= 20:
                loss = loss + 0.1 * model.weight.square().sum()
            loss.backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(40))
    assert len(run.scalars("loss")[0]) == 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_with_a_scaler_records_unscaled_losses_and_gradients(
    tmp_path: Path, data: Data, dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    losses, norms = [], []
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for number in range(8):
            rows = slice(8 * number, 8 * number + 8)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = F.cross_entropy(model(data[0][rows]), data[1][rows])
            scaler.scale(loss).backward()
            norms.append(float(model[0].weight.grad.norm()) / scaler.get_scale())  # type: ignore[union-attr,operator]
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
    run = open_run(tmp_path / "run")
    assert list(run.scalars("loss")[1]) == pytest.approx(losses)
    assert list(run_l2(run, "gradient/0.weight").values()) == pytest.approx(norms, rel=1e-3)
    assert no_gradient_repeats(run)


def test_a_step_skipped_by_the_scaler_is_a_step_and_a_fact(tmp_path: Path, data: Data) -> None:
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(data[0]) * 100, data[1])).backward()
            scaler.step(optimizer)
            scaler.update()
    run = open_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2, 3]
    skipped = run.facts("step_skipped")
    assert skipped
    assert skipped[0].data["loss_scale"] == 2.0**127
    assert not run.facts("nonfinite_gradients")


def test_lbfgs_calls_its_closure_many_times_in_one_step(tmp_path: Path, data: Data) -> None:
    model = nn.Linear(12, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[0]), data[1])
        loss.backward()
        return loss

    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for _ in range(4):
            optimizer.step(closure)
    run = open_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2, 3]
    assert list(run_l2(run, "gradient/weight")) == [0, 1, 2, 3]
    assert list(run_l2(run, "update/weight")) == [0, 1, 2, 3]
    assert no_gradient_repeats(run)


def test_a_gan_is_two_models_under_names_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), nn.Sequential(nn.Linear(2, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    hook = watchglass.watch(generator, run=tmp_path / "run", save_interval=1, strict=True)
    assert watchglass.watch(critic) is hook
    with hook:
        for _ in range(5):
            fake = generator(torch.randn(8, 4))
            for_critic.zero_grad()
            scores = torch.cat([critic(torch.randn(8, 2)), critic(fake.detach())])
            F.binary_cross_entropy_with_logits(scores, torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])).backward()
            for_critic.step()
            for_generator.zero_grad()
            F.binary_cross_entropy_with_logits(critic(fake), torch.ones(8, 1)).backward()
            for_generator.step()
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(10))
    names = run.tensor_names(role="gradient")
    assert {"gradient/0.weight", "gradient/model_2.0.weight"} <= set(names)
    assert list(run_l2(run, "gradient/model_2.0.weight")) == [0, 2, 4, 6, 8]
    assert list(run_l2(run, "gradient/0.weight")) == [1, 3, 5, 7, 9]
    assert no_gradient_repeats(run)


def test_two_optimizers_on_one_model_are_one_step(tmp_path: Path, data: Data) -> None:
    model = classifier()
    matrices = torch.optim.SGD([p for p in model.parameters() if p.dim() > 1], lr=0.05)
    vectors = torch.optim.Adam([p for p in model.parameters() if p.dim() < 2], lr=0.01)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for _ in range(4):
            model.zero_grad()
            F.cross_entropy(model(data[0]), data[1]).backward()
            matrices.step()
            vectors.step()
    run = open_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2, 3]
    assert list(run_l2(run, "update/0.bias")) == list(run_l2(run, "update/0.weight")) == [0, 1, 2, 3]
    assert {"learning_rate/0", "learning_rate/1"} <= set(run.tensor_names())


def test_activation_checkpointing_does_not_count_its_recomputation(tmp_path: Path, data: Data) -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            hidden = checkpoint(self.first, x, use_reentrant=True)
            return self.second(F.relu(hidden))  # type: ignore[no-any-return]

    model = Recomputed()
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        train(model, (data[0].clone(), data[1]), 4)
    run = open_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2, 3]
    assert run.steps(Mode.EVAL) == []


def test_functional_relus_show_their_units_where_they_are_consumed(tmp_path: Path, data: Data) -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(F.relu(self.first(x)))  # type: ignore[no-any-return]

    model = Functional()
    with torch.no_grad():
        model.first.bias[:10] = -100.0
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        train(model, data, 2)
    run = open_run(tmp_path / "run")
    assert "second.input.0" in run.tensor_names(role="input")
    assert "first.input.0" not in run.tensor_names(role="input")


@pytest.mark.parametrize("watched_first", [True, False])
def test_a_compiled_model_gives_all_but_its_activations(tmp_path: Path, data: Data, watched_first: bool) -> None:
    def compiled(model: nn.Module) -> nn.Module:
        torch.compiler.reset()
        return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]

    plain = nn.Linear(12, 4)
    model = copy.deepcopy(plain)
    expected = train(compiled(plain), data, 20)
    call = model if watched_first else compiled(model)
    with watchglass.watch(call, run=tmp_path / "run", save_interval=1, strict=True):
        losses = train(compiled(model) if watched_first else call, data, 20)
    assert losses == expected
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(20))
    np.testing.assert_array_equal(run.scalars("loss")[1], expected)
    assert {"weight", "gradient/weight", "update/weight"} <= set(run.tensor_names())
    assert len(run_l2(run, "gradient/weight")) == 20


def test_a_watched_model_can_be_copied(tmp_path: Path, data: Data) -> None:
    model = classifier()
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        train(model, data, 2)
        average = copy.deepcopy(model)
        with torch.no_grad():
            average(data[0])
        train(model, data, 2)
    run = open_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2, 3]
    assert run.steps(Mode.EVAL) == []


def test_names_of_shared_weights_and_wrappers(tmp_path: Path, data: Data) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(12, 12)
            self.decode = nn.Linear(12, 12)
            self.decode.weight = self.encode.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(torch.tanh(self.encode(x)))[:, :4]  # type: ignore[no-any-return]

    model = nn.DataParallel(Tied())
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        train(model, data, 2)
    names = open_run(tmp_path / "run").tensor_names(role="weight")
    assert names == ["encode.weight"]


PART_CHANGED = """
import sys
import torch
from torch import nn
import watchglass

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if sys.argv[1:]:
    watchglass.watch(model, run=sys.argv[1], save_interval=1, strict=True, collections=["input_gradients"])
for _ in range(4):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4, requires_grad=True).clone().view(-1, 4)
    inputs[:, 2:].add_(1)
    loss = model(inputs).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.slow
def test_a_tensor_of_which_a_part_was_changed_in_place_gives_its_gradient(tmp_path: Path) -> None:
    """PyTorch ends the process where such a view gets a hook before its node was asked for."""
    script = tmp_path / "train.py"
    script.write_text(PART_CHANGED)
    bare, watched = (
        subprocess.run([sys.executable, script, *given], capture_output=True, text=True, check=False)
        for given in ([], [str(tmp_path / "run")])
    )
    assert (watched.returncode, watched.stdout) == (0, bare.stdout)
    assert len(bare.stdout.split()) == 4
    assert run_l2(open_run(tmp_path / "run"), "gradient/input.0").keys() == {0, 1, 2, 3}
