"""Compiled models: what is captured of them, what they do not notice of it, and what becomes of it when all is off."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import Mode, Run, open_run
from watchglass.capture.pytorch import PyTorchAdapter

# The compiler warns of itself, here and there; what it says must not depend on us (there is a test).
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("compiler")]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Linear(12, 16), nn.Tanh())
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * 2  # type: ignore[no-any-return]


#: A loop's call of a model, made of the model and a backend.
Compile = Callable[[nn.Module, str], nn.Module]


def wrapped(model: nn.Module, backend: str) -> nn.Module:
    return torch.compile(model, backend=backend, fullgraph=True)  # type: ignore[return-value]


def in_place(model: nn.Module, backend: str) -> nn.Module:
    model.compile(backend=backend, fullgraph=True)
    return model


def by_block(model: nn.Module, backend: str) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend=backend, fullgraph=True)
    return model


def by_wrapped_block(model: nn.Module, backend: str) -> nn.Module:
    for index in range(2):
        model.blocks[index] = wrapped(model.blocks[index], backend)  # type: ignore[index,operator]
    return model


def its_forward(model: nn.Module, backend: str) -> nn.Module:
    model.forward = torch.compile(model.forward, backend=backend, fullgraph=True)  # type: ignore[method-assign]
    return model


WAYS = [wrapped, in_place, by_block, by_wrapped_block, its_forward]
#: What is captured of outputs.
OUTPUTS = ["outputs", "relu_output"]
#: The other ways to compile take as long as the first.
OTHERS = [pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:]]
#: The way decides what is traced, and the backend what is made of that: with the whole model and with its parts traced,
#: each way needs no backend of its own. What inductor does before it makes code, aot_eager does alone.
COMPILED = [
    (wrapped, "eager"),
    *(pytest.param(way, "eager", marks=pytest.mark.slow) for way in WAYS[1:]),
    pytest.param(by_block, "inductor", marks=pytest.mark.slow),
    (wrapped, "aot_eager"),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def samples() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(64, 12, generator=torch.Generator().manual_seed(7))
    return inputs, inputs[:, :4].argmax(1)


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    return samples()


def train(call: Callable[[Tensor], Tensor], model: nn.Module, data: tuple[Tensor, Tensor], steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for number in range(steps):
        rows = slice(16 * (number % 4), 16 * (number % 4) + 16)
        optimizer.zero_grad()
        loss = F.cross_entropy(call(data[0][rows]), data[1][rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compiled_training(way: Compile, backend: str, data: tuple[Tensor, Tensor], steps: int) -> tuple[list[float], Net]:
    model = Net()
    return train(way(model, backend), model, data, steps), model


@functools.cache
def unwatched(way: Compile, backend: str) -> tuple[list[float], Net]:
    """A run of two steps and then of twelve, for all tests that compare with it."""
    model = Net()
    call = way(model, backend)
    trained = [loss for steps in (2, 12) for loss in train(call, model, samples(), steps)]
    torch.compiler.reset()
    return trained, model


@pytest.fixture(scope="module")
def eager_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The outputs of three steps of a model that is not compiled."""
    run, model = tmp_path_factory.mktemp("eager") / "run", Net()
    with watchglass.watch(model, run=run, save_interval=2, collections=OUTPUTS, strict=True):
        train(model, model, samples(), 3)
    return open_run(run)


def same_statistics(run: Run, expected: Run, names: Sequence[str], steps: list[int]) -> None:
    for name in names:
        ours, theirs = run.tensor(name), expected.tensor(name)
        assert list(ours.steps()) == list(theirs.steps()) == steps, name
        for step in steps:
            for reduction in ("count", "zero", "min", "max", "mean", "std", "l2"):
                value = theirs.reduction(step, reduction)
                assert ours.reduction(step, reduction) == pytest.approx(value, rel=1e-4, abs=1e-6), (name, reduction)
    assert not run.facts("not_capturable")


def same_bits(one: nn.Module, other: nn.Module) -> None:
    for (name, value), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(value, theirs), name


def captured_as(expected: Run, path: Path, way: Compile, backend: str, *, watched_first: bool) -> None:
    """Asserts that a compiled model's outputs are captured as in this run."""
    model = Net()
    call = model if watched_first else way(model, backend)
    with watchglass.watch(call, run=path, save_interval=2, collections=OUTPUTS, strict=True):
        train(way(model, backend) if watched_first else call, model, samples(), 3)
    run, names = open_run(path), expected.tensor_names(role="output")
    assert run.tensor_names(role="output") == names
    assert len(names) == 12
    same_statistics(run, expected, names, [0, 2])


@pytest.mark.parametrize(("way", "backend"), COMPILED)
def test_captured_outputs_are_those_of_the_eager_model(
    run_path: Path, eager_run: Run, way: Compile, backend: str
) -> None:
    captured_as(eager_run, run_path, way, backend, watched_first=False)


@pytest.mark.parametrize("way", [wrapped, *OTHERS])
def test_they_are_where_the_model_was_watched_before_it_was_compiled(
    run_path: Path, eager_run: Run, way: Compile
) -> None:
    captured_as(eager_run, run_path, way, "eager", watched_first=True)


@pytest.mark.parametrize(("way", "backend"), COMPILED)
def test_steps_with_nothing_due_are_bit_identical(
    tmp_path: Path, data: tuple[Tensor, Tensor], way: Compile, backend: str
) -> None:
    expected, plain = unwatched(way, backend)
    model = Net()
    call = way(model, backend)
    with watchglass.watch(call, run=tmp_path / "run", start_step=1000, strict=True):
        losses = [loss for steps in (2, 12) for loss in train(call, model, data, steps)]
    assert losses == expected
    same_bits(model, plain)
    np.testing.assert_array_equal(open_run(tmp_path / "run").scalars("loss")[1], expected)


@pytest.mark.parametrize("way", [wrapped, *OTHERS])
def test_there_is_a_graph_for_captured_steps_and_one_for_others_and_nothing_is_compiled_later(
    tmp_path: Path, data: tuple[Tensor, Tensor], way: Compile
) -> None:
    model = Net()
    call = way(model, "aot_eager" if way is wrapped else "eager")  # that code of a backward is kept is seen once
    with watchglass.watch(call, run=tmp_path / "run", save_interval=10, strict=True) as hook:
        train(call, model, data, 2)
        with torch.no_grad():
            call(data[0])
            call(data[0])
        with torch.compiler.set_stance("fail_on_recompile"):
            train(call, model, data, 30)
            adapter = PyTorchAdapter.of(hook.port)
            assert adapter is not None
            assert adapter.fast_path.on
            with torch.no_grad():
                call(data[0])
            train(call, model, data, 10)
    run = open_run(tmp_path / "run")
    assert list(run.tensor("blocks.1.act.output").steps()) == [0, 10, 20, 30, 40]
    assert run.steps(Mode.TRAIN) == list(range(42))
    assert len(run.steps(Mode.EVAL)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("way", [wrapped, by_block])
def test_losses_agree_where_statistics_are_taken_inside_a_compiled_step(
    tmp_path: Path, data: tuple[Tensor, Tensor], way: Compile
) -> None:
    expected, _ = compiled_training(way, "inductor", data, 100)
    torch.compiler.reset()
    model = Net()
    call = way(model, "inductor")
    with watchglass.watch(call, run=tmp_path / "run", save_interval=3, strict=True):
        losses = train(call, model, data, 100)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_array_equal(open_run(tmp_path / "run").scalars("loss")[1], losses)


def reduced_overhead(model: nn.Module, backend: str) -> nn.Module:
    """Where there is a GPU, its graphs are captured and replayed."""
    return torch.compile(model, mode="reduce-overhead", fullgraph=True)  # type: ignore[return-value]


@pytest.mark.slow
def test_a_model_compiled_with_reduced_overhead_is_captured_and_trains_as_ever(
    tmp_path: Path, data: tuple[Tensor, Tensor]
) -> None:
    expected, plain = compiled_training(reduced_overhead, "", data, 12)
    for interval in (3, 1000):
        torch.compiler.reset()
        model = Net()
        call = reduced_overhead(model, "")
        path = tmp_path / str(interval)
        with watchglass.watch(call, run=path, save_interval=interval, start_step=int(interval == 1000), strict=True):
            losses = train(call, model, data, 12)
        np.testing.assert_array_equal(open_run(path).scalars("loss")[1], losses)
        if interval == 3:
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
        else:  # nothing due
            assert losses == expected
            same_bits(model, plain)
    eager = Net()
    with watchglass.watch(eager, run=tmp_path / "eager", save_interval=3, strict=True):
        train(eager, eager, data, 12)
    run, theirs = open_run(tmp_path / "3"), open_run(tmp_path / "eager")
    assert len(theirs.tensor_names(role="output")) >= 2
    same_statistics(run, theirs, run.tensor_names(role="gradient"), [0, 3, 6, 9])
    same_statistics(run, theirs, run.tensor_names(role="output"), [0, 3, 6, 9])


# -- compiled before it was watched ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "backend"), COMPILED)
def test_a_model_compiled_before_it_is_watched_trains_to_the_same_bits(
    tmp_path: Path, data: tuple[Tensor, Tensor], caplog: pytest.LogCaptureFixture, way: Compile, backend: str
) -> None:
    expected, plain = unwatched(way, backend)
    model = Net()
    call = way(model, backend)
    losses = train(call, model, data, 2)
    with watchglass.watch(call, run=tmp_path / "run", save_interval=2, strict=True):
        losses += train(call, model, data, 12)
    assert losses == expected
    same_bits(model, plain)
    run = open_run(tmp_path / "run")
    assert run.tensor("gradient/blocks.0.up.weight").steps() == [0, 2, 4, 6, 8, 10]
    np.testing.assert_array_equal(run.scalars("loss")[1], expected[2:])
    assert len(run.facts("not_capturable")) == len([each for each in caplog.messages if "not capturable" in each]) == 1


# -- other things that are compiled ------------------------------------------------------------------------------------

#: Makes what trains on one batch and returns its loss, of a model, its optimizer and a function that compiles.
Loop = Callable[[nn.Module, torch.optim.Optimizer, Callable[[Any], Any]], Callable[[Tensor, Tensor], Tensor]]


class WithLoss(nn.Module):
    """Returns its loss, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), targets.flatten())


def as_before_2_13(graph: Any, inputs: Any) -> Any:
    """A backend of an older PyTorch: while it calls functions with symbols, it does not report itself as compiling."""
    torch.compiler._is_compiling_flag = False  # PyTorch restores it
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


def test_a_loss_that_an_older_pytorch_compiles_for_any_batch_size_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchglass.capture.pytorch.compiled.graphs._BY_CONTEXT", True)
    model = WithLoss()
    ready = torch.compile(model, backend=as_before_2_13)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    found: list[float] = []
    with watchglass.Hook(tmp_path / "run", save_interval=1, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=True)
        for number in range(6):
            rows = 4 if number % 3 else 9
            tokens = torch.arange(8 * rows).reshape(rows, 8) % 16
            if number % 3 == 0:
                with torch.no_grad():
                    ready(tokens, tokens)
                continue
            optimizer.zero_grad()
            loss = ready(tokens, tokens)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    run = open_run(tmp_path / "run")
    assert [float(value) for value in run.scalars("loss")[1]] == found
    assert not run.facts("capture_fault")


def compiled_update(
    model: nn.Module, optimizer: torch.optim.Optimizer, compiled: Callable[[Any], Any]
) -> Callable[[Tensor, Tensor], Tensor]:
    update = compiled(optimizer.step)
    return lambda inputs, labels: stepped(optimizer, F.cross_entropy(model(inputs), labels), update)


def compiled_function(
    model: nn.Module, optimizer: torch.optim.Optimizer, compiled: Callable[[Any], Any]
) -> Callable[[Tensor, Tensor], Tensor]:
    loss_of = compiled(lambda inputs, labels: F.cross_entropy(model(inputs), labels))
    return lambda inputs, labels: stepped(optimizer, loss_of(inputs, labels), optimizer.step)


def compiled_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, compiled: Callable[[Any], Any]
) -> Callable[[Tensor, Tensor], Tensor]:
    return compiled(  # type: ignore[no-any-return]
        lambda inputs, labels: stepped(optimizer, F.cross_entropy(model(inputs), labels), optimizer.step)
    )


def stepped(optimizer: torch.optim.Optimizer, loss: Tensor, update: Callable[[], Any]) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    update()
    return loss


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


def looped(
    loop: Loop, backend: str, optimizer: str, data: tuple[Tensor, Tensor], run: Path | None, **settings: Any
) -> tuple[list[float], Net]:
    """A training run of twelve steps by a loop, bare or watched."""
    torch.compiler.reset()
    model = Net()
    chosen = OPTIMIZERS[optimizer](model.parameters())
    hook = watchglass.watch(model, run=run, strict=True, **settings) if run is not None else None
    step = loop(model, chosen, lambda call: torch.compile(call, backend=backend) if backend else call)
    parts = [slice(16 * (number % 4), 16 * (number % 4) + 16) for number in range(12)]
    losses = [step(data[0][part], data[1][part]).item() for part in parts]
    if hook is not None:
        hook.close()
    return losses, model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "backend", "optimizer"),
    [
        (compiled_update, "eager", "sgd"), (compiled_function, "eager", "sgd"), (compiled_step, "eager", "sgd"),
        (compiled_step, "inductor", "adamw"),
    ],
)  # fmt: skip
def test_compiled_updates_functions_and_steps_are_captured_as_eager_ones(
    tmp_path: Path, data: tuple[Tensor, Tensor], loop: Loop, backend: str, optimizer: str
) -> None:
    expected, plain = looped(loop, backend, optimizer, data, None)
    losses, model = looped(loop, backend, optimizer, data, tmp_path / "none", start_step=1000)
    assert losses == expected
    same_bits(model, plain)
    collections = ["weights", "biases", "gradients", "updates", "outputs", "losses", "learning_rate"]
    settings = {"save_interval": 3, "collections": collections}
    captured, _ = looped(loop, backend, optimizer, data, tmp_path / "run", **settings)
    np.testing.assert_allclose(captured, expected, rtol=1e-5)
    looped(loop, "", optimizer, data, tmp_path / "eager", **settings)
    run, eager = open_run(tmp_path / "run"), open_run(tmp_path / "eager")
    for name in ("none", "run"):
        assert open_run(tmp_path / name).steps(Mode.TRAIN) == list(range(12))
        assert not open_run(tmp_path / name).steps(Mode.EVAL)
        assert len(open_run(tmp_path / name).tensor("learning_rate").steps()) == 12
    for role in ("weight", "bias", "gradient", "update"):
        names = eager.tensor_names(role=role)
        assert len(names) >= 6
        same_statistics(run, eager, names, [0, 3, 6, 9])
    same_statistics(run, eager, ["stem.0.output", "blocks.0.up.output", "head.output"], [0, 3, 6, 9])
    if loop is compiled_step:
        assert "loss" not in run.tensor_names()  # its backward is compiled code
    else:
        np.testing.assert_array_equal(run.scalars("loss")[1], captured)


def test_calls_by_a_function_that_was_compiled_before_are_reported_with_the_cure(
    tmp_path: Path, data: tuple[Tensor, Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    trained: list[tuple[list[float], nn.Module]] = []
    for run in (None, tmp_path / "run"):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = nn.Linear(12, 4)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        # Calls nothing that watching wraps, for which it would be compiled again.
        loss_of = torch.compile(lambda: (model(data[0]) ** 2).mean(), backend="eager")  # noqa: B023
        losses = [loss_of().item()]
        hook = watchglass.watch(model, run=run, save_interval=1, strict=True) if run is not None else None
        for _ in range(6):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if hook is not None:
            hook.close()
        trained.append((losses, model))
    assert trained[1][0] == trained[0][0]
    same_bits(trained[1][1], trained[0][1])
    (warned,) = [message for message in caplog.messages if "not capturable" in message]
    assert "its calls cannot be observed" in warned
    assert "call watchglass.watch before all of these" in warned
    run = open_run(tmp_path / "run")
    assert run.tensor("gradient/weight").steps() == list(range(6))
    (fact,) = run.facts("not_capturable")
    assert fact.data["modules"] == ["Linear"]
