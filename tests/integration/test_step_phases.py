"""The phases of steps: known loads are found where they are, and the phases of a step are its whole time."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import watchglass
from clocks import Now
from timed_layers import BurnsBackward
from watchglass import Mode, open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.records import PHASE_NAMES
from watchglass.run import Phases, Run

STEPS = 40
#: Sizes of the loads, in seconds.
SLEEP_S, BURN_S = 0.02, 0.01


class Clock:
    """Loads, and the time that each really took on this machine."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []
        self.burned_s: list[float] = []

    def sleep(self) -> None:
        began = time.monotonic()
        time.sleep(SLEEP_S)
        self.slept_s.append(time.monotonic() - began)

    def burn(self) -> None:
        began = now = time.monotonic()
        while now - began < BURN_S:
            now = time.monotonic()
        self.burned_s.append(now - began)


class Timed:
    """The batches of a loader, and how long the script waited for each."""

    def __init__(self, loader: DataLoader[Tensor]) -> None:
        self._loader = loader
        self.waited_s: list[float] = []

    def __iter__(self) -> Iterator[Tensor]:
        batches = iter(self._loader)
        while True:
            began = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.waited_s.append(time.monotonic() - began)
            yield batch


class Slow(Dataset[Tensor]):
    def __init__(self, clock: Clock | FakeClock | None, size: int) -> None:
        self.clock, self.size = clock, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        if self.clock is not None:
            self.clock.sleep()
        return torch.full((4,), index / self.size)


class Burning(nn.Module):
    def __init__(self, clock: Clock | FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.linear = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        self.clock.burn()
        return self.linear(inputs)


class FakeClock(Now):
    """Time that only loads take."""

    def burn(self) -> None:
        self.advance(BURN_S)

    def sleep(self) -> None:
        self.advance(SLEEP_S)


def watched(path: Path, clock: FakeClock | None = None, hook: type[Hook] = Hook, profiler: Any = True) -> Hook:
    """A hook that records phases; without the sampler's process, which ``watch`` would start."""
    made = hook(path, profiler=profiler, save_interval=16, strict=True)
    if clock is not None:
        made.port.phase_clock = clock.monotonic_ns
    PyTorchAdapter(made.port, discover=True)
    return made


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), inputs.new_zeros(len(inputs), dtype=torch.long)).backward()
    optimizer.step()


def trained(
    path: Path, model: nn.Module, batches: Iterable[Tensor], between: Any = lambda: None, hook: type[Hook] = Hook
) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watching = watched(path, hook=hook)
    for inputs in batches:
        step(model, optimizer, inputs)
        between()
    watching.close()
    return open_run(path)


def assert_between(measured: Any, least_s: Any, most_s: Any) -> None:
    """A phase is at least as long as its load, and no longer than the calls of the script around it."""
    rounding = 1e-6
    assert (np.asarray(measured) > np.asarray(least_s) * (1 - rounding)).all()
    assert (np.asarray(measured) < np.asarray(most_s) * (1 + rounding)).all()


def assert_whole(run: Run, mode: Mode = Mode.GLOBAL) -> Phases:
    """The phases of each step add up to the time since the step before, which other rows have."""
    phases = run.phases(mode)
    ended = run.worker().tables.steps.log.latest["end_ns"].astype(np.int64)
    np.testing.assert_allclose(phases.seconds[1:], np.diff(ended) / 1e9, rtol=1e-6)
    return phases


def test_the_sleep_of_a_loader_is_time_that_the_step_waits_for_data(tmp_path: Path) -> None:
    clock = Clock()
    batches = Timed(DataLoader(Slow(clock, STEPS)))
    phases = assert_whole(trained(tmp_path / "run", nn.Linear(4, 2), batches))
    assert phases.steps.tolist() == list(range(STEPS))
    # The first wait begins with the loader.
    assert phases["data"][0] > clock.slept_s[0]
    assert_between(phases["data"][1:], clock.slept_s[1:], batches.waited_s[1:])
    assert phases.shares["data"] == pytest.approx(phases["data"].sum() / phases.seconds.sum())


def test_the_time_of_a_module_is_in_the_forward(tmp_path: Path) -> None:
    clock, took_s = Clock(), []
    model = Burning(clock)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watched(tmp_path / "run")
    for inputs in DataLoader(Slow(None, STEPS)):
        optimizer.zero_grad()
        began = time.monotonic()
        F.cross_entropy(model(inputs), torch.zeros(1, dtype=torch.long)).backward()
        took_s.append(time.monotonic() - began)
        optimizer.step()
    hook.close()
    phases = assert_whole(open_run(tmp_path / "run"))
    assert_between(phases["forward"], clock.burned_s, took_s)


def test_most_steps_were_on_the_fast_path(tmp_path: Path) -> None:
    counted: list[tuple[Any, ...]] = []

    class Counting(Hook):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            steady, step = self.port.steady, self.port.steady.step
            steady.step = lambda *values: (counted.append(values), step(*values))  # type: ignore[assignment]

    trained(tmp_path / "run", nn.Linear(4, 2), DataLoader(Slow(None, STEPS)), hook=Counting)
    assert len(counted) > STEPS / 2


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def assert_spent(phases: Phases, **seconds: float) -> None:
    """Each step but the first spent so much time in these phases, and none in others."""
    for name in PHASE_NAMES:
        np.testing.assert_allclose(phases[name][1:], seconds.get(name, 0.0), rtol=1e-6, err_msg=name)


def test_each_load_is_found_in_its_phase(tmp_path: Path, clock: FakeClock) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watched(tmp_path / "run", clock)
    for inputs in DataLoader(Slow(clock, STEPS)):
        clock.burn()  # on the batch
        optimizer.zero_grad()
        output = BurnsBackward.apply(model(inputs), clock.burn)
        clock.burn()  # on the loss
        F.cross_entropy(output, torch.zeros(len(inputs), dtype=torch.long)).backward()
        clock.burn()  # as clipping does
        optimizer.step()
        clock.sleep()  # on a log
    hook.close()
    phases = open_run(tmp_path / "run").phases()
    assert len(phases) == STEPS
    assert_spent(phases, data=SLEEP_S, prepare=BURN_S, forward=BURN_S, backward=BURN_S, update=BURN_S, other=SLEEP_S)


def test_micro_batches_add_up_and_time_between_them_is_no_update(tmp_path: Path, clock: FakeClock) -> None:
    model = Burning(clock)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watched(tmp_path / "run", clock)
    for number, inputs in enumerate(DataLoader(Slow(None, 2 * STEPS))):
        model(inputs).sum().backward()
        clock.sleep()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    hook.close()
    phases = open_run(tmp_path / "run").phases()
    assert len(phases) == STEPS
    assert_spent(phases, forward=2 * BURN_S, update=SLEEP_S, other=SLEEP_S)


def test_evaluations_are_apart(tmp_path: Path, clock: FakeClock) -> None:
    model = Burning(clock)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watched(tmp_path / "run", clock)
    for _ in range(3):
        for inputs in DataLoader(Slow(None, 8)):
            step(model, optimizer, inputs)
        model.eval()
        with torch.no_grad():
            for inputs in DataLoader(Slow(clock, 4)):
                F.cross_entropy(model(inputs), torch.zeros(1, dtype=torch.long))
        model.train()
    hook.close()
    run = open_run(tmp_path / "run")
    evaluated, phases = run.phases(Mode.EVAL), run.phases()
    assert (len(evaluated), len(phases)) == (12, 24)
    assert_spent(evaluated, data=SLEEP_S, forward=BURN_S)
    assert_spent(phases, forward=BURN_S)


def test_the_time_between_two_optimizers_of_a_step_is_in_the_step(tmp_path: Path, clock: FakeClock) -> None:
    model = Burning(clock)
    first, second = (torch.optim.SGD([each], 0.1) for each in model.parameters())
    hook = watched(tmp_path / "run", clock)
    for inputs in DataLoader(Slow(None, 8)):
        model(inputs).sum().backward()
        first.step()
        clock.sleep()
        second.step()
    hook.close()
    phases = open_run(tmp_path / "run").phases()
    assert len(phases) == 8
    assert_spent(phases, forward=BURN_S, other=SLEEP_S)


def test_what_another_thread_loads_makes_nobody_wait(tmp_path: Path, clock: FakeClock) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watched(tmp_path / "run", clock)
    loaded: list[Tensor] = []

    def load() -> None:
        loaded.extend(DataLoader(Slow(clock, 8)))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    for inputs in loaded:
        step(model, optimizer, inputs)
    hook.close()
    phases = open_run(tmp_path / "run").phases()
    assert len(phases) == 8
    assert phases["data"].sum() == 0


class SlowFile(io.BytesIO):
    """A file whose first write takes the time of a sleep."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def write(self, data: Any) -> int:
        if not self.tell():
            self.clock.sleep()
        return super().write(data)


class Garbage:
    """A part of a cycle; to collect it takes the time of a load."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.itself = clock, self

    def __del__(self) -> None:
        self.clock.burn()


def collect(clock: FakeClock) -> None:
    Garbage(clock)
    gc.collect()


def test_garbage_collections_and_saves_are_noted_with_their_step(tmp_path: Path, clock: FakeClock) -> None:
    """Of the training thread, in steps with and without a capture; shorter ones than a millisecond are left out."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watched(tmp_path / "run", clock)
    gc.freeze()  # what other tests have left takes long to examine after each step
    for number, inputs in enumerate(DataLoader(Slow(None, STEPS))):
        if number in (3, 36):
            collect(clock)
        if number == 37:
            thread = threading.Thread(target=collect, args=(clock,))
            thread.start()
            thread.join()
        step(model, optimizer, inputs)
        gc.collect()
        if number in (7, 36):
            torch.save(model.state_dict(), SlowFile(clock))
            torch.save(model.state_dict(), SlowFile(clock))
    hook.close()
    run = open_run(tmp_path / "run")
    found = run.sql("select step, pause, count, seconds from pauses order by all").to_arrow()
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (3, "collection", 1, pytest.approx(BURN_S)), (8, "save", 2, pytest.approx(2 * SLEEP_S)),
        (36, "collection", 1, pytest.approx(BURN_S)), (37, "save", 2, pytest.approx(2 * SLEEP_S)),
    ]  # fmt: skip
    # They are a part of the time of that step; in step 37 the other thread took some, too.
    phases = run.phases()
    took_s = {n: seconds for n, seconds in zip(phases.steps.tolist(), phases.seconds, strict=True) if seconds}
    assert took_s == pytest.approx({3: BURN_S, 8: 2 * SLEEP_S, 36: BURN_S, 37: 2 * SLEEP_S + BURN_S})


def test_of_profilers_only_that_of_the_script_is_noted_and_what_is_collected_meanwhile_is_its_work(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("start", "stop", "key_averages"):
        call = getattr(torch.profiler.profile, name)

        def slow(profile: Any, call: Any = call) -> Any:
            collect(clock)
            return call(profile)

        monkeypatch.setattr(torch.profiler.profile, name, slow)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watched(tmp_path / "run", clock, profiler={"enabled": True, "profile_steps": "20:22,24:26"})
    gc.freeze()
    for number, inputs in enumerate(DataLoader(Slow(None, STEPS))):
        step(model, optimizer, inputs)
        if number == 30:
            with torch.profiler.profile():
                torch.ones(1).add(1)
    hook.close()
    run = open_run(tmp_path / "run")
    assert len(run.operators()) == 2
    found = run.sql("select step, pause, count, seconds from pauses order by all").to_arrow().to_pylist()
    assert [tuple(row.values()) for row in found] == [(31, "profile", 2, pytest.approx(2 * BURN_S))]


def test_nothing_is_recorded_without_the_profiler(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watchglass.watch(model, run=tmp_path / "run", save_interval=16, strict=True)
    for inputs in DataLoader(Slow(None, 32)):
        step(model, optimizer, inputs)
    hook.close()
    phases = open_run(tmp_path / "run").phases()
    assert len(phases) == 0
    assert np.isnan(list(phases.shares.values())).all()


def test_phases_are_a_table_and_a_data_frame(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", nn.Linear(4, 2), DataLoader(Slow(None, STEPS)))
    frame = run.phases().to_pandas()
    assert list(frame.columns) == ["data", "prepare", "copy", "forward", "backward", "update", "compute", "other"]
    found = run.sql("select step, data_s, forward_s, other_s from phases where mode = 'TRAIN' order by step").to_arrow()
    assert found["step"].to_pylist() == frame.index.tolist()
    np.testing.assert_array_equal(found["forward_s"], frame["forward"])
    with pytest.raises(KeyError):
        run.phases()["waiting"]
