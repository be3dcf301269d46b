"""Not yet, never and no more: three errors, and waiting for what is still to come."""

import pytest

from watchglass.errors import (
    EndOfRunError,
    InvalidValueError,
    StepNotReadyError,
    StepNotRecordedError,
    UnknownNameError,
)
from watchglass.records import Mode
from watchglass.run import open_run
from watchglass.run.waiting import wait_for
from watchglass.testing import RunBuilder, Step, build_run


class Clock:
    """Time that passes only while somebody sleeps, and what happens meanwhile."""

    def __init__(self, *happenings):
        self.time, self.slept, self._happenings = 0.0, [], list(happenings)

    def now(self):
        return self.time

    def sleep(self, seconds):
        assert seconds > 0
        self.slept.append(seconds)
        self.time += seconds
        if self._happenings:
            self._happenings.pop(0)()

    def wait(self, run, steps, mode=Mode.TRAIN, worker=None, timeout_s=10.0, poll_s=0.5):
        wait_for(run, steps, mode, worker, timeout_s, poll_s, now=self.now, sleep=self.sleep)


ACCESSORS = [
    lambda run, step: run.step(step),
    lambda run, step: run.global_step(step),
    lambda run, step: run.tensor_names(step=step),
    lambda run, step: run.tensor("loss").value(step),
    lambda run, step: run.tensor("loss").reduction(step, "mean"),
    lambda run, step: run.tensor("loss").histogram(step),
    lambda run, step: run.tensor("loss").shape(step),
    lambda run, step: run.tensor("loss").torch(step),
]


@pytest.mark.parametrize("ask", ACCESSORS)
def test_every_accessor_distinguishes_the_three(tmp_path, ask):
    with RunBuilder(tmp_path / "run") as builder:
        for _ in range(3):
            builder.step(scalars={"loss": 1.0})
        run = open_run(tmp_path / "run")
        with pytest.raises(StepNotReadyError, match=r"it has 0 to 2; to wait for it: wait_for_steps\(3\)"):
            ask(run, 3)
        with pytest.raises(InvalidValueError, match="whole numbers from 0"):
            ask(run, -1)
        builder.leave()
        run.refresh()
        with pytest.raises(EndOfRunError, match="ended before it; it has 0 to 2"):
            ask(run, 3)
    part = open_run(tmp_path / "run", steps=(0, 2))
    with pytest.raises(StepNotRecordedError, match="opened with steps 0 to 1 only"):
        ask(part, 2)
    for error in (StepNotReadyError, StepNotRecordedError, EndOfRunError):
        assert issubclass(error, UnknownNameError)
        assert issubclass(error, LookupError)


def test_what_was_not_recorded_at_a_complete_step_is_never(tmp_path):
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}), Step({"lr": 1.0})]))
    with pytest.raises(StepNotRecordedError, match="recorded at 0"):
        run.tensor("loss").value(1)
    with pytest.raises(StepNotRecordedError):
        run.step(1).value("loss")
    with pytest.raises(StepNotRecordedError):
        run.step(1).reduction("loss", "mean")


def test_over_all_modes_an_open_training_step_is_not_yet(tmp_path):
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        builder.step(scalars={"loss": 1.0}, mode=Mode.EVAL)
        run = open_run(tmp_path / "run")
        assert run.mode_step(1) == (Mode.EVAL, 0)
        with pytest.raises(StepNotReadyError):
            run.mode_step(2)


def test_waiting_ends_when_the_steps_are_complete(tmp_path):
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        run = open_run(tmp_path / "run")
        clock = Clock(*[lambda: builder.step(scalars={"loss": 1.0})] * 5)
        clock.wait(run, [1, 3])
        assert run.steps() == [0, 1, 2, 3]
        assert clock.slept == [0.5] * 3
        clock.wait(run, 2)
        assert len(clock.slept) == 3  # what is there needs no waiting


def test_waiting_is_over_when_the_time_is(tmp_path):
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        run, clock = open_run(tmp_path / "run"), Clock()
        with pytest.raises(
            StepNotReadyError, match=r"TRAIN step 1 of worker_0 is not complete after 2.2 s; it has 0 to 0"
        ):
            clock.wait(run, 1, timeout_s=2.2)
        assert sum(clock.slept) == pytest.approx(2.2)
        with pytest.raises(StepNotReadyError):
            run.wait_for_steps(1, timeout_s=0)
        run.wait_for_steps([0], timeout_s=0)
        for wrong in ({"timeout_s": -1}, {"poll_s": 0}):
            with pytest.raises(InvalidValueError, match="must be"):
                run.wait_for_steps(1, **wrong)
        with pytest.raises(UnknownNameError, match="no worker 'worker_5'"):
            run.wait_for_steps(1, worker="worker_5")


def test_waiting_ends_with_the_training(tmp_path):
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        run = open_run(tmp_path / "run")

        def last():
            builder.step(scalars={"loss": 1.0})
            builder.leave()

        clock = Clock(last)
        with pytest.raises(EndOfRunError, match="it has 0 to 1"):
            clock.wait(run, 5)
        assert len(clock.slept) == 1


def test_waiting_ends_when_all_workers_have_died(tmp_path):
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0})], status=None))
    clock = Clock()
    with pytest.raises(EndOfRunError):
        clock.wait(run, 1, timeout_s=None)
    assert clock.time <= 2.0


def test_a_step_is_complete_when_every_worker_has_ended_it(tmp_path):
    with RunBuilder(tmp_path / "run", workers=2) as builder:
        builder.step(scalars={"loss": 1.0}, workers=[0])
        run = open_run(tmp_path / "run")
        with pytest.raises(StepNotReadyError, match="of worker_1 is not complete"):
            Clock().wait(run, 0)
        Clock().wait(run, 0, worker="worker_0")
        clock = Clock(lambda: builder.step(scalars={"loss": 1.0}, workers=[1]))
        clock.wait(run, 0)
        # Only the first evaluates; the other is past that once it goes on, or has left.
        builder.step(scalars={"loss": 1.0}, mode=Mode.EVAL, workers=[0])
        with pytest.raises(StepNotReadyError):
            Clock().wait(run, 0, mode=Mode.EVAL)
        Clock(lambda: builder.step(scalars={"loss": 1.0}, workers=[1])).wait(run, 0, mode=Mode.EVAL)


def test_a_worker_that_left_early_delays_no_other(tmp_path):
    with RunBuilder(tmp_path / "run", workers=2) as builder:
        builder.step(scalars={"loss": 1.0})
        builder.leave("failed", ranks=[1])
        builder.step(scalars={"loss": 1.0}, workers=[0], flush=False)
        builder.workers[0].flush()
        run = open_run(tmp_path / "run")
        Clock().wait(run, 1)
        assert list(run.worker("worker_0").numbers(Mode.TRAIN)) == [0, 1]
