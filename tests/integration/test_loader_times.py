"""Times of the batches of data loaders: known loads are found where they are, and the script gets what it would get."""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate

from clocks import Now
from waiting import until
from watchglass import open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.run import LoaderWorkers

LOAD_S = 0.02
BATCHES = 33

#: Time that only loads take; each process has its own.
clock = Now()


def now_ns() -> int:
    """The time of this process."""
    return clock.monotonic_ns()


def slept() -> Tensor:
    """Takes the time of a load, and says how long that is."""
    clock.advance(LOAD_S)
    return torch.tensor(LOAD_S, dtype=torch.float64)


def watched(path: Path, **settings: Any) -> Hook:
    """A hook that records phases by that clock."""
    hook = Hook(path, profiler=True, strict=True, **settings)
    hook.port.phase_clock = now_ns
    PyTorchAdapter(hook.port, discover=True)
    return hook


class Samples(Dataset[Tensor]):
    """A row for each sample: how long getting it took, and 0 for the time of collate_fn."""

    def __init__(self, load: Callable[[], Tensor] | None, count: int = BATCHES) -> None:
        self.load, self.count = load, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        took = torch.zeros((), dtype=torch.float64) if self.load is None else self.load()
        return torch.stack([took, torch.zeros_like(took)])


class SlowRest(Samples):
    """The samples that a script which leaves an epoch after 20 batches does not see take five times as long."""

    def __getitem__(self, index: int) -> Tensor:
        loads = [super(SlowRest, self).__getitem__(index) for _ in range(1 if index < 20 else 5)]
        return torch.stack(loads).sum(0)


class Eager(BatchSampler):
    """Asks for its order at once, and not with the first batch."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(super().__iter__()))


class AllAtOnce(Samples):
    """The samples of a batch by one call."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [super(AllAtOnce, self).__getitem__(index) for index in indices]


class Uneven(IterableDataset[Tensor]):
    """Worker 1 has three times as many samples as worker 0, the only one without workers."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = torch.utils.data.get_worker_info()
        for _ in range(10 if worker is not None and worker.id == 0 else 30):
            took = slept()
            yield torch.stack([took, torch.zeros_like(took)])


class Failing(Samples):
    """Some samples cannot be read."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 20:
            raise LookupError("sample 20 is missing")
        return super().__getitem__(index)


class Deadly(Samples):
    """A worker that dies in the middle, once the script has trained on what came before."""

    def __init__(self, load: Callable[[], Tensor]) -> None:
        super().__init__(load)
        self.trained = torch.zeros(1).share_memory_()

    def __getitem__(self, index: int) -> Tensor:
        if index == 20:
            until(lambda: self.trained >= index)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def slow_collate(samples: list[Tensor]) -> Tensor:
    """Takes the time of a load, and says so in each row."""
    batch = default_collate(samples)
    batch[:, 1] = slept()
    return batch


def trained(path: Path, loader: DataLoader[Tensor], epochs: int = 1, most: int = BATCHES) -> tuple[LoaderWorkers, Any]:
    """The times of a run, and the batches that its script got."""
    hook = watched(path, save_interval=16)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    got: list[Tensor] = []
    try:
        for _ in range(epochs):
            for number, batch in enumerate(loader):
                got.append(batch)
                model(torch.atleast_2d(batch.float())).sum().backward()
                optimizer.step()
                if isinstance(loader.dataset, Deadly):
                    loader.dataset.trained += 1
                if number + 1 == most:
                    break
    finally:
        hook.close()
        loader._iterator = None  # ends workers that are kept
    return open_run(path).loader_workers(), torch.stack([torch.atleast_2d(each).sum(0) for each in got])


def assert_near(times: LoaderWorkers, batches: Tensor) -> None:
    """The mean times are those that the data set and collate_fn have taken."""
    mean = times.largest()
    assert mean is not None
    # Of up to sixteen of the last batches the times are not written.
    assert mean.batches >= len(batches) - 16
    fetch_s, collate_s = batches[: mean.batches].mean(0).tolist()
    assert mean.mean_fetch_s == pytest.approx(fetch_s)
    assert mean.mean_collate_s == pytest.approx(collate_s)
    assert 0 <= mean.mean_transfer_s <= mean.mean_queued_s


@pytest.mark.parametrize(
    "start",
    ["none", "fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("collate", [None, slow_collate])
def test_known_loads_are_found(tmp_path: Path, start: str, collate: Any) -> None:
    workers = {} if start == "none" else {"num_workers": 2, "multiprocessing_context": start}
    loader = DataLoader(Samples(slept), collate_fn=collate, **workers)  # type: ignore[arg-type]
    times, batches = trained(tmp_path / "run", loader)
    assert len(batches) == BATCHES
    assert_near(times, batches)
    assert [row.loader_worker for row in times.rows] == ([0, 1] if workers else [-1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"dataset": AllAtOnce(slept, 66), "batch_size": 2},
        {"dataset": Samples(slept), "batch_size": None},
        {"dataset": Samples(slept), "batch_sampler": BatchSampler(SequentialSampler(range(33)), 1, False)},
        {"dataset": Samples(slept), "sampler": list(range(33)), "in_order": False},
    ],
    ids=["getitems", "single samples", "batch sampler", "out of order"],
)
def test_any_way_to_read_a_data_set_is_timed(tmp_path: Path, workers: int, options: dict[str, Any]) -> None:
    start = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    assert_near(*trained(tmp_path / "run", DataLoader(**options, **start)))


@pytest.mark.parametrize("keep", [False, True])
def test_workers_of_an_iterated_data_set_end_one_by_one(tmp_path: Path, keep: bool) -> None:
    loader = DataLoader(Uneven(), num_workers=2, multiprocessing_context="fork", persistent_workers=keep)
    times, batches = trained(tmp_path / "run", loader, epochs=2, most=99)
    assert len(batches) == 80
    assert_near(times, batches)
    first, second = times.rows
    assert (first.loader_worker, second.loader_worker) == (0, 1)
    assert 15 <= first.batches <= 20
    assert second.batches > 40


def test_batches_that_wait_for_the_script_are_in_the_queue(tmp_path: Path) -> None:
    class Late(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            slept()
            return super().forward(inputs)

    hook = watched(tmp_path / "run", save_interval=16)
    model = Late(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in DataLoader(Samples(None), num_workers=1, multiprocessing_context="fork"):
        model(batch.float()).sum().backward()
        optimizer.step()
    hook.close()
    (row,) = open_run(tmp_path / "run").loader_workers().rows
    assert row.mean_queued_s > LOAD_S
    assert row.mean_transfer_s == 0


def test_a_data_set_whose_class_takes_no_attributes_has_no_time_of_fetching(tmp_path: Path) -> None:
    samples: Any = [torch.zeros(2)] * BATCHES
    loader = DataLoader(samples, num_workers=1, multiprocessing_context="fork", collate_fn=slow_collate)
    (row,) = trained(tmp_path / "run", loader)[0].rows
    assert math.isnan(row.mean_fetch_s)
    assert row.mean_collate_s == pytest.approx(LOAD_S)


class Started:
    """A worker_init_fn that leaves a file for each worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker: int) -> None:
        (self.folder / f"worker-{worker}-{os.getpid()}").touch()


def test_the_script_finds_its_loader_as_it_left_it(tmp_path: Path) -> None:
    started = Started(tmp_path)
    data = Samples(slept, 8)
    loader = DataLoader(
        data, num_workers=2, multiprocessing_context="fork", collate_fn=slow_collate, worker_init_fn=started
    )
    read = Samples.__getitem__
    hook = watched(tmp_path / "run")
    for _ in loader:
        assert (loader.collate_fn, loader.worker_init_fn) == (slow_collate, started)
        assert Samples.__getitem__ is read
        assert b"watchglass" not in pickle.dumps(loader.collate_fn)
    hook.close()
    assert len(list(tmp_path.glob("worker-*"))) == 2


@pytest.mark.parametrize("data", [Failing(slept), Deadly(slept)])
def test_a_worker_that_fails_or_dies_ends_the_script_as_before(tmp_path: Path, data: Samples) -> None:
    loader = DataLoader(data, num_workers=2, multiprocessing_context="fork")
    message = ""
    try:
        trained(tmp_path / "run", loader)
    except (LookupError, RuntimeError) as error:
        message = str(error)
        error.__traceback__ = None  # its frames hold the iterator
    assert "sample 20 is missing" in message or "exited unexpectedly" in message or "killed" in message
    times = open_run(tmp_path / "run").loader_workers().largest()
    assert times is not None
    assert times.mean_fetch_s == pytest.approx(LOAD_S)
    assert times.batches <= 20


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"in_order": False}, {"prefetch_factor": 1}], ids=str)
@pytest.mark.parametrize("data", [SlowRest(slept), Samples(None), Uneven()], ids=["slow", "fast", "iterated"])
def test_what_is_left_of_an_epoch_is_not_taken_for_the_next_one(
    tmp_path: Path, data: Any, options: dict[str, Any]
) -> None:
    """Kept workers still have batches of an epoch that the script has left."""
    options = {} if isinstance(data, Uneven) else options  # such data have no order
    # Which of several workers has made a batch is found by the time at which it was ready, if they come out of order.
    workers = 2 if options.get("in_order", True) else 1
    loader = DataLoader(data, num_workers=workers, multiprocessing_context="fork", persistent_workers=True, **options)
    times, batches = trained(tmp_path / "run", loader, epochs=4, most=20)
    assert len(batches) == 80
    assert_near(times, batches)


def test_a_batch_sampler_of_the_script_does_not_show_where_an_epoch_begins(tmp_path: Path) -> None:
    sampler = Eager(SequentialSampler(range(BATCHES)), 1, False)
    data = Samples(slept)
    loader = DataLoader(
        data, batch_sampler=sampler, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    )
    times, batches = trained(tmp_path / "run", loader, epochs=4, most=20)
    assert len(batches) == 80
    assert sum(row.batches for row in times.rows) <= 20


def test_kept_workers_are_timed_again_after_an_exception(tmp_path: Path) -> None:
    loader = DataLoader(Failing(slept), num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    hook = watched(tmp_path / "run")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    got = []
    for _ in range(3):
        try:
            for batch in loader:
                got.append(batch.sum(0))
                model(batch.float()).sum().backward()
                optimizer.step()
        except LookupError as error:
            error.__traceback__ = None  # its frames hold the iterator
    hook.close()
    loader._iterator = None
    assert len(got) == 60
    assert_near(open_run(tmp_path / "run").loader_workers(), torch.stack(got))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_that_is_imported_later_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Such a loader makes its iterators without the method of PyTorch's."""

    class StatefulDataLoader(DataLoader[Tensor]):
        def __iter__(self) -> Any:
            return self._get_iterator()

    iterates = StatefulDataLoader.__iter__
    hook = watched(tmp_path / "run")
    module = types.SimpleNamespace(StatefulDataLoader=StatefulDataLoader)
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", module)
    start = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    got = []
    for batch in StatefulDataLoader(Samples(slept), **start):
        got.append(batch.sum(0))
        model(batch.float()).sum().backward()
        optimizer.step()
    hook.close()
    run = open_run(tmp_path / "run")
    assert_near(run.loader_workers(), torch.stack(got))
    (fact,) = run.facts("data_loader")
    assert fact.data["num_workers"] == workers
    assert StatefulDataLoader.__iter__ is iterates


def test_nothing_is_timed_without_the_profiler(tmp_path: Path) -> None:
    hook = Hook(tmp_path / "run", strict=True)
    PyTorchAdapter(hook.port, discover=True)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in DataLoader(Samples(None)):
        model(batch.float()).sum().backward()
        optimizer.step()
    hook.close()
    times = open_run(tmp_path / "run").loader_workers()
    assert len(times) == 0
    assert times.largest() is None
