"""CUDA graphs: while one is captured nothing of ours is launched, copied or waited for, and no step is heard of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from train_twice import EVERYTHING, batch, bits
from watchglass import Mode, open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.pytorch.saving import reduce


class Capture:
    """What PyTorch says of the current stream on a machine that has no GPU."""

    def __init__(self) -> None:
        self.on = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Capture:
    state = Capture()
    if torch.cuda.is_available():
        torch.cuda.init()  # what follows is initialised then
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.on)
    for name in ("statistics", "take"):
        read = getattr(reduce.PyTorchArrays, name)

        def unless_on(*arguments: Any, read: Any = read, **more: Any) -> Any:
            assert not state.on, "a tensor is read while a graph is captured"
            return read(*arguments, **more)

        monkeypatch.setattr(reduce.PyTorchArrays, name, unless_on)
    return state


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act, self.head = nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)
        self.part: Any = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        if self.part is not None:  # a part of it is captured by itself
            with self.part():
                self.act(x[:1])
        return self.head(x)  # type: ignore[no-any-return]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    inputs, labels = batch(number)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


#: Whole steps that are captured, before others take the fast path: on a GPU they never do for more than a forward.
CAPTURED = (3, 4, 9, 10)


@pytest.mark.parametrize("interval", [1, 1000])
@pytest.mark.parametrize("found", [False, True])
def test_nothing_is_read_of_a_step_that_is_captured_and_it_does_not_count(
    tmp_path: Path, capture: Capture, interval: int, found: bool
) -> None:
    outcomes, losses = [], []
    for watched in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        settings: dict[str, Any] = {"save_interval": interval, "collections": EVERYTHING, "strict": True}
        hook = None
        if watched and found:
            hook = Hook(tmp_path / "run", **settings)
            PyTorchAdapter(hook.port, discover=True)
        elif watched:
            hook = watchglass.watch(model, run=tmp_path / "run", **settings)
        losses = []
        for number in range(30):
            if number in CAPTURED:
                with capture():
                    step(model, optimizer, number)
            else:
                losses.append(step(model, optimizer, number))
        if hook is not None:
            hook.close()
        outcomes.append(bits([losses, model, optimizer]))
    assert outcomes[0] == outcomes[1]
    run = open_run(tmp_path / "run")
    count = 30 - len(CAPTURED)
    assert run.steps(Mode.TRAIN) == list(range(count))
    assert not run.steps(Mode.EVAL)
    assert [float(value) for value in run.scalars("loss")[1]] == losses
    expected = list(range(count)) if interval == 1 else [0]
    for name in ("gradient/head.weight", "update/head.weight", "head.weight", "head.output"):
        assert run.tensor(name).steps() == expected
    assert not run.problems


def test_nothing_is_read_of_a_part_that_is_captured_inside_a_step(tmp_path: Path, capture: Capture) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=EVERYTHING, strict=True):
        for number in range(4):
            model.part = capture if number == 2 else None
            step(model, optimizer, number)
    run = open_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2, 3]
    assert run.tensor("act.output").reductions("count")[1].tolist() == [256, 256, 256, 256]
    assert run.tensor("head.output").steps() == [0, 1, 2, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_training_run_in_a_real_graph_is_captured_and_replayed_as_in_an_unwatched_run(tmp_path: Path) -> None:
    outcomes = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        inputs, labels = (part.cuda() for part in batch(0))
        settings: dict[str, Any] = {"save_interval": 1, "collections": EVERYTHING, "strict": True}
        hook = watchglass.watch(model, run=tmp_path / "run", **settings) if watched else None

        def whole() -> Tensor:
            optimizer.zero_grad(set_to_none=True)  # noqa: B023
            loss = F.cross_entropy(model(inputs), labels)  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                whole()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = whole()
        for _ in range(4):
            graph.replay()
        whole()
        torch.cuda.synchronize()
        if hook is not None:
            hook.close()
        outcomes.append([loss.item(), *(parameter.detach().cpu() for parameter in model.parameters())])
    for ours, theirs in zip(*outcomes, strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
    run = open_run(tmp_path / "run")
    assert run.steps(Mode.TRAIN) == [0, 1, 2, 3]
    assert run.tensor("head.output").steps() == [0, 1, 2, 3]
    assert not run.problems
