"""The sampler: rows at an interval, sources that fail or cost too much, clocks that jump, a store that refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from clocks import Now
from nvml import FakeNvml
from stores.faulty_store import FaultyStore
from watchglass.profile import Metric, MetricReading, MetricSource, Sampler
from watchglass.profile.sources import NvidiaSource
from watchglass.run import Run, open_run
from watchglass.store import LocalStore, Store, StreamWriter, create_attempt, create_run

NAN = float("nan")


class Load(MetricSource):
    """A number that a test sets, or an error."""

    def __init__(self, name: str = "load", share: float | None = None) -> None:
        self.name, self.core_share = name, share  # type: ignore[misc]
        self.value, self.error, self.reads, self.closed = 1.0, "", 0, False
        self.instances: tuple[str, ...] = ()
        self.exact = False

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        self.reads += 1
        if self.error:
            raise OSError(self.error)
        metric = Metric(self.name, "%", self.instances, self.exact)
        return [MetricReading(metric, [self.value] * (len(self.instances) or 1))]

    def close(self) -> None:
        self.closed = True


class World:
    """A sampler in a run, and a clock."""

    def __init__(self, path: Path, *sources: MetricSource, interval_s: float = 0.5, store: Store | None = None) -> None:
        self.path, self.now, self.cost_ns = path, Now(), 0
        self.store = store or LocalStore(path)
        create_run(self.store, command=["train.py"])
        create_attempt(self.store, "")
        self.sampler = Sampler(
            sources, StreamWriter(self.store, 0, "system", clock=self.now), interval_s, clock=self.now,
            cost_ns=lambda: self.cost_ns,
        )  # fmt: skip

    def run_s(self, seconds: float) -> None:
        end_s = self.now.s + seconds
        while self.now.s + self.sampler.wait_s <= end_s:
            self.now.advance(self.sampler.wait_s)
            self.sampler.sample()

    def read(self) -> Run:
        self.sampler.flush()
        return open_run(self.path)

    def notes(self) -> list[tuple[str, str]]:
        rows = self.read().table("notes").to_arrow().to_pylist()
        return [(row["source"], row["event"]) for row in rows]


@pytest.fixture
def load() -> Load:
    return Load()


def test_samples_come_at_the_interval_and_are_read_by_name(tmp_path: Path, load: Load) -> None:
    world = World(tmp_path / "run", load)
    world.run_s(2)
    found = world.read().samples("load")
    assert (found.values.tolist(), found.unit, found.instances, found.stream) == ([1.0] * 5, "%", (), "system")
    assert ((found.time_ns - found.time_ns[0]) / 1e9).tolist() == [0, 0.5, 1, 1.5, 2]
    assert abs(found.time[0].astype("int64") - world.now.time_ns()) < 3e9
    world.sampler.close()
    assert load.closed


def test_a_number_that_two_sources_give_takes_no_other_along(tmp_path: Path, load: Load) -> None:
    last = Load()
    world = World(tmp_path / "run", load, last, Load("other"))
    load.value, last.value = 2.0, 3.0
    world.run_s(1)
    run = world.read()
    assert run.samples("load").values.tolist() == [3.0] * 3
    assert run.samples("other").values.tolist() == [1.0] * 3
    world.sampler.close()


def test_batches_reach_the_store_before_the_end(tmp_path: Path, load: Load) -> None:
    world = World(tmp_path / "run", load)
    world.run_s(2)
    assert len(open_run(tmp_path / "run").samples("load")) >= 4
    world.run_s(1000)
    newest_ns = open_run(tmp_path / "run").samples("load").time_ns[-1]
    assert world.now.monotonic_ns() - newest_ns <= 10.5e9
    world.sampler.close()


def test_the_interval_changes_and_the_sampler_pauses_by_request(tmp_path: Path, load: Load) -> None:
    world = World(tmp_path / "run", load, interval_s=30)
    world.run_s(30)
    assert load.reads == 2
    world.now.advance(0.01)
    world.sampler.change(0.5, None)
    world.run_s(1.2)
    assert load.reads == 5, "at once, and twice more"
    world.sampler.change(None, samples=False)
    world.run_s(100)
    assert (load.reads, world.sampler.wait_s) == (5, float("inf"))
    world.now.advance(100)
    world.sampler.change(None, samples=True)
    world.run_s(1.2)
    assert load.reads == 8
    assert world.notes() == [("sampler", "interval"), ("sampler", "paused"), ("sampler", "resumed")]
    world.sampler.close()


def test_late_samples_are_not_caught_up_on(tmp_path: Path, load: Load) -> None:
    world = World(tmp_path / "run", load)
    world.sampler.sample()
    world.now.advance(100)
    world.sampler.sample()
    assert (load.reads, 0 < world.sampler.wait_s <= 0.5) == (2, True)
    world.sampler.close()


def test_a_source_that_fails_is_noted_once_and_tried_again_while_the_others_go_on(tmp_path: Path, load: Load) -> None:
    gpu = Load("gpu")
    world = World(tmp_path / "run", load, gpu)
    world.run_s(1)
    gpu.error = "GPU is lost"
    before = gpu.reads
    world.run_s(600)
    assert gpu.reads - before < 25, "it is tried less and less often"
    gpu.error, gpu.value = "", 2.0
    world.run_s(61)
    assert world.notes() == [("gpu", "failed"), ("gpu", "returned")]
    run = world.read()
    assert "GPU is lost" in run.table("notes").to_arrow()["message"].to_pylist()[0]
    assert len(run.samples("load")) == 2 * 662 + 1
    assert set(run.samples("gpu").values.tolist()) == {1.0, 2.0}
    world.sampler.close()


def test_nvml_that_fails_in_the_middle_leaves_the_other_metrics_and_returns(tmp_path: Path, load: Load) -> None:
    library = FakeNvml()
    world = World(tmp_path / "run", load, NvidiaSource(library))
    world.run_s(2)
    library.broken = library.NVMLError("Driver/library version mismatch")
    world.run_s(30)
    library.broken = None
    world.run_s(30)
    assert world.notes() == [("GPUs", "failed"), ("GPUs", "returned")]
    run = world.read()
    assert "version mismatch" in run.table("notes").to_arrow()["message"].to_pylist()[0]
    assert len(run.samples("load")) == 2 * 62 + 1
    assert 5 <= len(run.samples("gpu.utilization")) < 2 * 62
    assert run.samples("gpu.utilization").values[-1].tolist() == [90, 10]
    world.sampler.close()
    assert library.open == 0


def test_an_expensive_source_is_read_less_often_and_says_so(tmp_path: Path, load: Load) -> None:
    costly = Load("processes", share=0.001)
    world = World(tmp_path / "run", load, costly)
    read = costly.read

    def slow(now_ns: int) -> Sequence[MetricReading]:
        world.cost_ns += 10_000_000
        return read(now_ns)

    costly.read = slow  # type: ignore[method-assign]
    world.run_s(100)
    assert costly.reads == 11, "10 ms at a thousandth of a core are 10 s"
    run = world.read()
    assert len(run.samples("processes")) == 11
    assert len(run.samples("load")) == 201
    assert world.notes() == [("processes", "slower")]
    world.sampler.close()


def test_instances_may_come_and_go(tmp_path: Path, load: Load) -> None:
    world = World(tmp_path / "run", load)
    for instances in (("1", "2"), ("2", "3")):
        load.instances = instances
        world.run_s(0.5)
        world.now.advance(0.25)
    found = world.read().samples("load")
    assert found.instances == ("1", "2", "3")
    assert found.values[0].tolist()[:2] == [1.0, 1.0]
    assert found.values[0][2] != found.values[0][2]
    assert found.values[-1].tolist()[1:] == [1.0, 1.0]
    world.sampler.close()


def test_numbers_are_short_unless_they_must_be_exact(tmp_path: Path, load: Load) -> None:
    load.value = 4_589_617_152.0
    exact = Load("memory")
    exact.value, exact.exact = load.value, True
    world = World(tmp_path / "run", load, exact)
    world.run_s(0)
    run = world.read()
    assert run.samples("memory").values[0] == load.value
    assert run.samples("load").values[0] == pytest.approx(load.value, rel=1.3e-4)
    world.sampler.close()


def test_a_wall_clock_that_is_set_is_noted(tmp_path: Path, load: Load) -> None:
    world = World(tmp_path / "run", load)
    world.run_s(1)
    world.now._wall_ns -= 3_600_000_000_000
    world.run_s(1)
    assert world.notes() == [("sampler", "clock")]
    assert "-3600.0 s" in world.read().table("notes").to_arrow()["message"].to_pylist()[0]
    assert (world.read().samples("load").time_ns[1:] > world.read().samples("load").time_ns[:-1]).all()
    world.sampler.close()


def test_while_the_store_refuses_samples_wait(tmp_path: Path, load: Load) -> None:
    faulty = FaultyStore(LocalStore(tmp_path / "run"))
    world = World(tmp_path / "run", load, store=faulty)
    faulty.unreachable = True
    world.run_s(5)
    faulty.unreachable = False
    world.run_s(5)
    assert len(world.read().samples("load")) == 21
    world.sampler.close()
