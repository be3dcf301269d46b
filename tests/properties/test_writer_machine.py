"""Write, flush, crash, resume, read, in any order: the reader sees a prefix of what was flushed, always.

Per worker what was written comes in order, nothing stands twice, nothing is invented, and whatever a flush reported as
written is visible to every later reader. Examples are the same every day; ``make fuzz`` runs many more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from stores.faulty_store import Fault, FaultyStore
from stores.written_steps import Clock, Looker, Writer
from watchglass.store import LocalStore, Store, compact, create_attempt, create_run, open_store
from watchglass.store.media.objects import ObjectStore

_SUPPRESSED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
#: Sequences of operations to try; the environment asks for more.
_MANY = int(os.environ.get("WATCHGLASS_TEST_EXAMPLES", "60"))
#: Whose flush, of how many steps, how it ends, and how much of it arrives in percent where it fails.
_WRITES = st.tuples(
    st.integers(0, 2),
    st.integers(1, 3),
    st.sampled_from(["arrives", "arrives", "fails", "killed"]),
    st.integers(0, 100),
)


class WriterMachine(RuleBasedStateMachine):
    """One run, its writers, and readers of several ages."""

    make_store: Callable[[], Store]
    discard: Callable[[Store], None] = staticmethod(lambda store: None)
    lookers = Bundle("lookers")

    @initialize(target=lookers, workers=st.integers(1, 3))
    def a_run(self, workers: int) -> Looker:
        self.store = type(self).make_store()
        self.faulty, self.clock = FaultyStore(self.store), Clock()
        create_run(self.store, command=[])
        create_attempt(self.store, "")
        self.workers, self.attempt = workers, 0
        self.writers = [Writer(self.faulty, f"worker_{rank}", self.clock) for rank in range(workers)]
        for writer in self.writers:
            writer.begin()
        self.every_looker = [self._new_looker()]
        return self.every_looker[0]

    def _new_looker(self) -> Looker:
        return Looker(FaultyStore(self.store))

    def _living(self, which: int) -> Writer | None:
        living = [writer for writer in self.writers if writer.alive]
        return living[which % len(living)] if living else None

    @rule(writes=st.lists(_WRITES, min_size=1, max_size=6))
    def flush(self, writes: list[tuple[int, int, str, int]]) -> None:
        """Several flushes, of which some fail and some are the last of their process."""
        for which, steps, outcome, percent in writes:
            writer = self._living(which)
            if writer is not None:
                self.faulty.fault = None if outcome == "arrives" else Fault(percent / 100, killed=outcome == "killed")
                writer.flush(steps)
                self.faulty.fault = None
                if outcome == "killed":
                    writer.end()  # also where nothing was written, since the store was unreachable

    @rule(which=st.integers(0, 2))
    def a_process_takes_over(self, which: int) -> None:
        """The same worker of the same attempt, as a harvest or a restart by the launcher has it."""
        dead = [writer for writer in self.writers if writer.attempt == self.attempt and not writer.alive]
        if dead and not self.faulty.unreachable:
            dead[which % len(dead)].begin()

    @rule()
    def the_training_is_resumed(self) -> None:
        if self.faulty.unreachable:
            return
        for writer in self.writers:
            writer.end()
        self.attempt = create_attempt(self.store, "")
        new = [
            Writer(self.faulty, f"worker_{rank}", self.clock, self.attempt, rotate_bytes=1)
            for rank in range(self.workers)
        ]
        for writer in new:
            writer.begin()
        self.writers += new

    @rule()
    def the_run_is_compacted(self) -> None:
        """After the last writer; old segments are removed at once, because no reader pins them."""
        if not any(writer.alive for writer in self.writers):
            compact(self.store, even_if_unseen=True)

    @rule(seconds=st.sampled_from([1, 61, 300, 90_000]), wall=st.sampled_from([0, 1, 1, 1, -1]))
    def time_passes(self, seconds: int, wall: int) -> None:
        """The wall clock may stand still or be set back meanwhile."""
        self.clock.passed_s += seconds
        self.clock.wall_s += wall * seconds

    @rule()
    def the_store_becomes_unreachable_or_comes_back(self) -> None:
        self.faulty.unreachable = not self.faulty.unreachable

    @rule(looker=lookers, full=st.booleans())
    def read(self, looker: Looker, full: bool) -> None:
        looker.look(full=full)
        looker.check(self.writers, whole=False)

    @rule(looker=lookers)
    def read_everything(self, looker: Looker) -> None:
        looker.look_whole()
        looker.check(self.writers, whole=True)

    @rule(looker=lookers, calls=st.integers(0, 12))
    def read_while_the_store_fails(self, looker: Looker, calls: int) -> None:
        assert isinstance(looker.store, FaultyStore)
        looker.look_while_the_store_fails(looker.store, calls)
        looker.check(self.writers, whole=False)

    @precondition(lambda self: len(self.every_looker) < 4)
    @rule(target=lookers)
    def somebody_comes_late(self) -> Looker:
        looker = self._new_looker()
        self.every_looker.append(looker)
        return looker

    def teardown(self) -> None:
        if not hasattr(self, "every_looker"):
            return
        for looker in [*self.every_looker, self._new_looker()]:
            looker.look_whole()
            looker.check(self.writers, whole=True)
        type(self).discard(self.store)


def assert_machine_holds(
    make_store: Callable[[], Store], *, examples: int, discard: Callable[[Store], None] | None = None
) -> None:
    machine = type("Machine", (WriterMachine,), {"make_store": staticmethod(make_store)})
    if discard is not None:
        machine.discard = staticmethod(discard)
    chosen = settings(max_examples=examples, stateful_step_count=30, suppress_health_check=_SUPPRESSED, deadline=None)
    run_state_machine_as_test(machine, settings=chosen)


def test_in_a_local_folder() -> None:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        assert_machine_holds(
            lambda: LocalStore(tempfile.mkdtemp(dir=folder)),
            examples=_MANY,
            discard=lambda store: shutil.rmtree(store.location),
        )


def test_on_an_object_store() -> None:
    obstore = pytest.importorskip("obstore")

    def make_store() -> ObjectStore:
        memory = obstore.store.MemoryStore()
        return ObjectStore("memory://run", "", lambda seconds, retries: memory)

    assert_machine_holds(make_store, examples=_MANY, discard=lambda store: store.close())


@pytest.mark.slow
def test_on_a_server(s3_location: str) -> None:
    """The same with a real server's listings, conditional writes and ranges; fewer examples, each in its own place."""
    numbers = count()
    assert_machine_holds(
        lambda: open_store(f"{s3_location}/{next(numbers)}"),
        examples=max(5, _MANY // 12),
        discard=lambda store: store.close(),
    )


@pytest.mark.parametrize("calls", range(6))
def test_a_store_that_fails_while_compacted_data_is_looked_for_hides_none(tmp_path: Path, calls: int) -> None:
    writer, store = _written_and_compacted(tmp_path)
    looker = Looker(FaultyStore(store))
    looker.look_while_the_store_fails(looker.store, calls)
    looker.look_whole()
    looker.check([writer], whole=True)


def test_what_was_written_and_compacted_between_two_looks_is_seen(tmp_path: Path) -> None:
    writer, store = _written_and_compacted(tmp_path, write=False)
    looker = Looker(FaultyStore(store))
    looker.look_whole()
    writer.flush(2)
    writer.end()
    compact(store, even_if_unseen=True)
    looker.look_whole()
    looker.check([writer], whole=True)


def _written_and_compacted(folder: Path, *, write: bool = True) -> tuple[Writer, LocalStore]:
    store = LocalStore(folder / "run")
    create_run(store, command=[])
    create_attempt(store, "")
    writer = Writer(FaultyStore(store), "worker_0", Clock())
    writer.begin()
    if write:
        writer.flush(2)
        writer.end()
        compact(store, even_if_unseen=True)
    return writer, store
