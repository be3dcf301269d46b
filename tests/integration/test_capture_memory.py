"""Memory that capture holds: updates within their bound, and what happens when there is none left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import watchglass
from devices.fake_device import FakeDevice, OnDevice, move
from train_twice import Watch, trained_twice
from watchglass import Mode, Run, open_run
from watchglass.capture.pytorch.device import torch_statistics
from watchglass.capture.saving import saving
from watchglass.records import RAW
from watchglass.stats import of_array
from watchglass.store import RawTensor

STEPS = 8


def network() -> nn.Sequential:
    """Weights of 128, 256 and 128 elements of four bytes, biases of 16, 16 and 8."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))


Deltas = list[dict[str, np.ndarray[Any, Any]]]


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = STEPS) -> Deltas:
    """What each step changed in each parameter."""
    random = torch.Generator().manual_seed(3)
    deltas: Deltas = []
    for _ in range(steps):
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        model.zero_grad()
        inputs = torch.randn(4, 8, generator=random)
        F.mse_loss(model(inputs), inputs).backward()
        for optimizer in optimizers:
            optimizer.step()
        deltas.append({name: (value.detach() - before[name]).numpy() for name, value in model.named_parameters()})
    return deltas


def updates_by_step(run: Run, steps: int = STEPS) -> list[dict[str, tuple[bool, Any]]]:
    """Of each step the updates that it has: whether they are sampled, and their row of statistics."""
    found = []
    for step in range(steps):
        rows = run.step(step).statistics()
        names = [name.removeprefix("update/") if name.startswith("update/") else "" for name in rows.names]
        found.append(
            {name: (bool(rows.sampled[at]), rows.values[at]) for at, name in enumerate(names) if name}
        )  # fmt: skip
    return found


def assert_rows_of(row: Any, array: np.ndarray[Any, Any]) -> None:
    """Counts and extremes are those of the array to the last bit, sums up to the order in which they are taken."""
    expected = of_array(array)
    np.testing.assert_array_equal(row[:7], expected[:7])
    np.testing.assert_allclose(row[7:], expected[7:], rtol=1e-12, atol=1e-15)


def peak(run: Run) -> int:
    (left,) = (event for event in run.worker().lifecycle if event["event"] == "left")
    return int(left["counters"]["peak_bytes"]["cpu"])


#: Bytes of memory, and how many groups the network's parameters then make.
BOUNDS = {1 << 20: 1, 2240: 1, 1700: 2, 1100: 3}


@pytest.mark.parametrize("bound", BOUNDS)
def test_groups_take_turns_and_each_update_is_exact(tmp_path: Path, bound: int) -> None:
    model = network()
    with watchglass.watch(
        model, run=tmp_path, save_interval=1, collections=["updates"], capture_memory_bytes=bound, strict=True
    ) as hook:
        deltas = train(model, torch.optim.Adam(model.parameters(), lr=0.01))
    assert 0 < hook.port.cost.memory.peak["cpu"] <= bound
    found = updates_by_step(open_run(tmp_path))
    groups = BOUNDS[bound]
    everything = set(deltas[0])
    for start in range(STEPS - groups + 1):
        together = found[start : start + groups]
        assert set().union(*together) == everything, "every parameter has its turn"
        assert sum(map(len, together)) == len(everything)
    for step, rows in enumerate(found):
        for name, (sampled, values) in rows.items():
            assert not sampled
            assert_rows_of(values, deltas[step][name])


def test_several_optimizers_share_the_bound_and_each_has_its_turns(tmp_path: Path) -> None:
    model = network()
    first, second = list(model[:2].parameters()) + list(model[2].parameters())[:1], list(model[2:].parameters())[1:]
    optimizers = [torch.optim.SGD(parameters, lr=0.1) for parameters in (first, second)]
    bound = 1100  # two groups for the first, one for the second
    with watchglass.watch(
        model, run=tmp_path, save_interval=1, collections=["updates"], capture_memory_bytes=bound, strict=True
    ) as hook:
        deltas = train(model, *optimizers)
    assert 0 < hook.port.cost.memory.peak["cpu"] <= bound
    found = updates_by_step(open_run(tmp_path))
    for start in range(STEPS - 1):
        assert set(found[start]) | set(found[start + 1]) == set(deltas[0])
    for step, rows in enumerate(found):
        for name, (_, values) in rows.items():
            assert_rows_of(values, deltas[step][name])


def test_of_a_parameter_beyond_the_bound_a_fixed_sample_is_examined(tmp_path: Path) -> None:
    model = network()
    settings: dict[str, Any] = {"save_raw": True, "save_shape": True, "reductions": ["median"]}
    bound = 400
    with watchglass.watch(
        model,
        run=tmp_path,
        save_interval=1,
        collections=["updates"],
        capture_memory_bytes=bound,
        strict=True,
        **settings,
    ):
        deltas = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = open_run(tmp_path)
    large = {"0.weight", "2.weight", "4.weight"}
    seen: set[str] = set()
    for step, rows in enumerate(updates_by_step(run)):
        seen |= set(rows)
        for name, (sampled, values) in rows.items():
            delta = deltas[step][name]
            assert sampled == (name in large)
            stride = {"0.weight": 3, "2.weight": 7, "4.weight": 3}.get(name, 1)
            assert stride == 1 or 2 * delta.ravel()[::stride].nbytes <= bound
            assert_rows_of(values, delta.ravel()[::stride])
            tensor = run.tensor(f"update/{name}")
            assert tensor.info.shape == delta.shape
            # What is not of the whole tensor does not pass for it.
            raw = [row.tensor.tensor_id for row in run.worker().tables.rows(RAW, run.global_step(step))]
            assert (tensor.info.tensor_id in raw) == (not sampled)
            assert (step in tensor.reductions("median")[0]) == (not sampled)
    assert seen == set(deltas[0])
    shapes = {fact.data["tensor"]: fact.data["shape"] for fact in run.facts("shape")}
    assert shapes["update/2.weight"] == [16, 16]


def test_a_sample_does_not_look_at_few_columns_only(tmp_path: Path) -> None:
    model = nn.Linear(64, 64, bias=False)
    with watchglass.watch(
        model, run=tmp_path, save_interval=1, collections=["updates"], capture_memory_bytes=64 * 64 // 2, strict=True
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        weight = model.weight.detach()
        model.weight.grad = torch.zeros(64, 64)
        model(torch.zeros(1, 64)).sum().backward()
        model.weight.grad = torch.arange(64.0).repeat(64, 1)
        before = weight.clone()
        optimizer.step()
    changed = before - weight
    ((sampled, values),) = updates_by_step(open_run(tmp_path), 1)[0].values()
    assert sampled
    count, largest, mean = values[0], -values[5], -values[7] / values[0]
    assert 200 <= count <= 257
    assert largest == changed.max()
    assert mean == pytest.approx(31.5, rel=0.1)


def test_weights_in_another_order_of_memory_are_sampled_where_they_are(tmp_path: Path) -> None:
    model = nn.Conv2d(8, 16, 3, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with watchglass.watch(
        model, run=tmp_path, save_interval=1, collections=["updates"], capture_memory_bytes=1000, strict=True
    ):
        before = model.weight.detach().clone()
        model(torch.randn(2, 8, 5, 5)).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    delta = (model.weight.detach() - before).permute(0, 2, 3, 1).reshape(-1)
    ((sampled, values),) = updates_by_step(open_run(tmp_path), 1)[0].values()
    assert sampled
    assert_rows_of(values, delta[::11].numpy())  # not every tenth: rows have eight elements


@pytest.mark.parametrize("bound", [0, 3])
def test_without_memory_there_are_no_updates_and_everything_else(tmp_path: Path, bound: int) -> None:
    model = network()
    with watchglass.watch(model, run=tmp_path, save_interval=1, capture_memory_bytes=bound, strict=True):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = open_run(tmp_path)
    assert run.tensor_names(role="update") == []
    assert run.tensor("gradient/0.weight").steps() == list(range(STEPS))


def test_the_peak_is_reported(tmp_path: Path) -> None:
    model = network()
    with watchglass.watch(model, run=tmp_path, save_interval=1, collections=["updates"], facts=(), strict=True):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    copies = sum(parameter.nbytes for parameter in model.parameters())
    assert copies <= peak(open_run(tmp_path)) <= copies + STEPS * 6 * 1024


@pytest.mark.parametrize("bound", [600, 1500, 1 << 20])
def test_what_is_held_at_its_peak_is_within_the_bound(tmp_path: Path, bound: int) -> None:
    """Of copies; what waits to be written has a bound of its own, and here is what a step's rows are."""
    model = network()
    half = list(model.parameters())
    optimizers = torch.optim.SGD(half[:3], lr=0.1), torch.optim.Adam(half[3:], lr=0.1)
    with watchglass.watch(model, run=tmp_path, save_interval=1, capture_memory_bytes=bound, strict=True) as hook:
        train(model, *optimizers)
        held = hook.port.cost.memory.peak["cpu"]
        waited = hook.port.cost.report()["peak_bytes"]["cpu"] - held
    run = open_run(tmp_path)
    assert any(updates_by_step(run)), "updates were on"
    assert min(bound, sum(parameter.nbytes for parameter in half)) / 4 < held <= bound
    assert held + waited <= peak(run) <= bound + max(waited, STEPS * 40 * 1024)


def test_on_a_device_working_memory_is_beside_the_bound_and_small(tmp_path: Path) -> None:
    model, bound = network(), 1500
    with FakeDevice(lambda name: None):
        move(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watchglass.watch(model, run=tmp_path, save_interval=1, capture_memory_bytes=bound, strict=True):
            for _ in range(STEPS):
                optimizer.zero_grad()
                inputs = OnDevice(torch.randn(4, 8))
                F.mse_loss(model(inputs), inputs).backward()
                optimizer.step()
    run = open_run(tmp_path)
    assert any(updates_by_step(run)), "updates were on"
    (left,) = (event for event in run.worker().lifecycle if event["event"] == "left")
    held = left["counters"]["peak_bytes"]["xpu:0"]
    # A block for each of six tensors at most.
    assert 1 << 14 < held <= bound + torch_statistics.peak_bytes([torch.empty(1)] * 6) < 5 << 20


def test_a_bounded_capture_changes_nothing(tmp_path: Path) -> None:
    """``trained_twice`` compares the training with and without it, to the last bit."""

    def training(watch: Watch) -> Any:
        model = network()
        watch(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return [list(delta.values()) for delta in map(_tensors, train(model, optimizer, steps=24))], model, optimizer

    run = trained_twice(tmp_path, training, capture_memory_bytes=600)
    assert run.steps(Mode.TRAIN) == list(range(24))


def _tensors(delta: dict[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in delta.items()}


# -- nothing left ------------------------------------------------------------------------------------------------------


def host_is_full() -> Exception:
    """What PyTorch itself raises."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    return caught.value


EXHAUSTIONS: dict[str, Callable[[], Exception]] = {
    "host": lambda: MemoryError("Unable to allocate 3 GiB"),
    "device": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"),
    "allocator": host_is_full,
}


@pytest.mark.parametrize("kind", EXHAUSTIONS)
def test_no_memory_for_copies_ends_updates_only(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    error = EXHAUSTIONS[kind]()

    class Full(TorchFunctionMode):
        """The third copy finds no memory."""

        calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += func is torch.empty_like
            if func is torch.empty_like and self.calls == 3:
                raise error
            return func(*args, **(kwargs or {}))

    full = Full()

    def training(watch: bool) -> tuple[list[bytes], Any]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not watch:
            return _bits(train(model, optimizer)), None
        with watchglass.watch(model, run=tmp_path, save_interval=1, strict=True) as hook, full:
            return _bits(train(model, optimizer)), hook

    expected, (watched, hook) = training(False)[0], training(True)
    assert watched == expected
    run = open_run(tmp_path)
    assert run.tensor_names(role="update") == []
    for name in ("0.weight", "gradient/0.weight", "0.output", "0.bias"):
        assert run.tensor(name).steps() == list(range(STEPS)), name
    (fact,) = run.facts("capture_out_of_memory")
    assert fact.source == "update tensors"
    assert type(error).__name__ in fact.data["error"]
    assert len([m for m in caplog.messages if "stopped capturing update tensors: out of memory" in m]) == 1
    assert full.calls == 3, "no later step tries again"
    memory = hook.port.cost.memory
    peak_bytes = memory.peak["cpu"]
    memory.hold("cpu", peak_bytes)
    assert memory.peak["cpu"] == peak_bytes, "what was held is given back"


@pytest.mark.parametrize(
    ("role", "collections"),
    [
        ("gradient", ["gradients", "outputs"]),
        ("output", ["gradients", "outputs"]),
        ("update", ["updates", "outputs"]),
        ("weight", ["weights", "outputs"]),
    ],
)
def test_no_memory_for_one_kind_of_tensor_ends_that_kind_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, role: str, collections: list[str]
) -> None:
    """At the fourth step, while raw tensors are copied: nothing of that step's call stays behind."""
    original = RawTensor
    ids: dict[int, str] = {}

    def full(tensor_id: int, *copied: Any) -> Any:
        name = ids.get(tensor_id) or ids.setdefault(
            tensor_id, next(n for n, i in hook.port.ids._by_name.items() if i == tensor_id)
        )
        info_role = name.partition("/")[0] if "/" in name else "weight" if name.endswith(".weight") else "output"
        if info_role == role and hook.port.clock.next_train_step > 3:
            raise MemoryError("Unable to allocate 3 GiB")
        return original(tensor_id, *copied)

    monkeypatch.setattr(saving, "RawTensor", full)
    model = network()
    with watchglass.watch(
        model, run=tmp_path, save_interval=1, collections=collections, save_raw=True, strict=True
    ) as hook:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = open_run(tmp_path)
    (fact,) = run.facts("capture_out_of_memory")
    assert fact.source == f"{role} tensors"
    for name in run.tensor_names(role=role):
        assert run.tensor(name).steps() == [0, 1, 2]
    for other in {"gradient", "output", "update", "weight"} - {role}:
        for name in run.tensor_names(role=other):
            assert run.tensor(name).steps() == list(range(STEPS))
    assert run.scalars("loss")[0].tolist() == list(range(STEPS))


def _bits(deltas: Deltas) -> list[bytes]:
    return [value.tobytes() for delta in deltas for value in delta.values()]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "watchglass")
