"""Compiled models: what is captured of them, what they do not notice of it, and what becomes of it when all is off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import Mode, open_run
from watchglass.capture.pytorch import PyTorchAdapter

# The compiler warns of itself, here and there; what it says must not depend on us (there is a test).
pytestmark = pytest.mark.filterwarnings("ignore")

BACKENDS = ["eager", "aot_eager", "inductor"]


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


@pytest.fixture(scope="module", autouse=True)
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the compiler leaves behind when it is first used is not ours."""
    with pytest.MonkeyPatch.context() as patch:
        # In this process: a pool of compiling processes would outlive the tests.
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        torch.compile(lambda x: x + 1)(torch.ones(1))
        yield


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(64, 12, generator=torch.Generator().manual_seed(7))
    return inputs, inputs[:, :4].argmax(1)


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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("watched_first", [True, False])
def test_captured_outputs_are_those_of_the_eager_model(
    tmp_path: Path, data: tuple[Tensor, Tensor], way: Compile, backend: str, watched_first: bool
) -> None:
    collections = ["outputs", "relu_output"]
    eager, model = Net(), Net()
    with watchglass.watch(eager, run=tmp_path / "eager", save_interval=2, collections=collections, strict=True):
        train(eager, eager, data, 3)
    call = model if watched_first else way(model, backend)
    with watchglass.watch(call, run=tmp_path / "run", save_interval=2, collections=collections, strict=True):
        train(way(model, backend) if watched_first else call, model, data, 3)
    run, expected = open_run(tmp_path / "run"), open_run(tmp_path / "eager")
    names = expected.tensor_names(role="output")
    assert run.tensor_names(role="output") == names
    assert len(names) == 12
    for name in names:
        for step in (0, 2):
            ours, theirs = run.tensor(name), expected.tensor(name)
            assert list(ours.steps()) == list(theirs.steps()) == [0, 2]
            for reduction in ("count", "zero", "min", "max", "mean", "std", "l2"):
                value = theirs.reduction(step, reduction)
                assert ours.reduction(step, reduction) == pytest.approx(value, rel=1e-4, abs=1e-6), (name, reduction)
    assert not run.facts("not_capturable")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_with_nothing_due_are_bit_identical(
    tmp_path: Path, data: tuple[Tensor, Tensor], way: Compile, backend: str
) -> None:
    expected, plain = compiled_training(way, backend, data, 12)
    torch.compiler.reset()
    model = Net()
    call = way(model, backend)
    with watchglass.watch(call, run=tmp_path / "run", start_step=1000, strict=True):
        losses = train(call, model, data, 12)
    assert losses == expected
    for (name, value), other in zip(plain.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    np.testing.assert_array_equal(open_run(tmp_path / "run").scalars("loss")[1], expected)


@pytest.mark.parametrize("way", WAYS)
def test_there_is_a_graph_for_captured_steps_and_one_for_others_and_nothing_is_compiled_later(
    tmp_path: Path, data: tuple[Tensor, Tensor], way: Compile
) -> None:
    model = Net()
    call = way(model, "aot_eager")
    with watchglass.watch(call, run=tmp_path / "run", save_interval=10, strict=True) as hook:
        train(call, model, data, 2)
        with torch.no_grad():
            call(data[0])
            call(data[0])
        with torch.compiler.set_stance("fail_on_recompile"):
            train(call, model, data, 30)
            adapter = PyTorchAdapter.of(hook)
            assert adapter is not None
            assert adapter.steady.on
            with torch.no_grad():
                call(data[0])
            train(call, model, data, 10)
    run = open_run(tmp_path / "run")
    assert list(run.tensor("blocks.1.act.output").steps()) == [0, 10, 20, 30, 40]
    assert run.steps(Mode.TRAIN) == list(range(42))
    assert len(run.steps(Mode.EVAL)) == 3


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
