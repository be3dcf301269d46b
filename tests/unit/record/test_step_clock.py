from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from watchglass.record import Forward, OpenStep, StepClock
from watchglass.records import SCALARS, Mode, StepEnd


class Log:
    def __init__(self) -> None:
        self.steps: list[OpenStep] = []
        ticks = count()
        self.clock = StepClock(self.steps.append, lambda mode, step: step % 2 == 0, lambda: next(ticks))

    def train(self, optimizer: int = 1, backward: bool = True, update: bool = True) -> None:
        forward = self.clock.forward(grad=True, training=True)
        forward.backpropagated = backward
        if update:
            self.clock.begin_update(optimizer)
            self.clock.end_update()

    def evaluate(self) -> None:
        self.clock.forward(grad=False, training=False)

    def seen(self) -> list[tuple[str, int]]:
        self.clock.close()
        return [(step.mode.name, step.mode_step) for step in self.steps]


def test_each_update_is_one_step_and_global_steps_count_over_modes() -> None:
    log = Log()
    log.train()
    log.train()
    log.evaluate()
    log.evaluate()
    log.train()
    assert log.seen() == [("TRAIN", 0), ("TRAIN", 1), ("EVAL", 0), ("EVAL", 1), ("TRAIN", 2)]
    assert [step.global_step for step in log.steps] == [0, 1, 2, 3, 4]
    assert [step.train_step for step in log.steps] == [0, 1, 1, 1, 2]
    assert [step.due for step in log.steps] == [True, False, True, False, True]


def test_a_resumed_training_counts_from_the_updates_before_it() -> None:
    log = Log()
    log.evaluate()
    forward = log.clock.forward(grad=True, training=True)
    forward.backpropagated = True
    step = log.clock.begin_update(1)
    log.clock.resume(500)
    assert (step.mode_step, step.train_step, log.clock.first_train_step) == (500, 500, 500)
    log.clock.end_update()
    log.evaluate()
    log.train()
    assert log.clock.steady_train(0, 0, 0.0, 0.0, 0.0, [0] * 6)[:2] == (4, 502)
    assert log.seen() == [("EVAL", 0), ("TRAIN", 500), ("EVAL", 1), ("TRAIN", 501)]
    assert [step.global_step for step in log.steps] == [0, 1, 2, 3]
    assert [step.train_step for step in log.steps][1:] == [500, 500, 501]


def test_an_evaluation_that_is_under_way_belongs_to_the_step_before_the_resumed_one() -> None:
    log = Log()
    log.evaluate()
    log.clock.resume(500)
    log.train()
    assert [step.train_step for step in log.steps] == [499]


def test_forwards_of_a_resumed_step_that_are_evaluations_after_all_stand_before_it() -> None:
    log = Log()
    log.train(backward=False, update=False)
    log.clock.resume(500)
    log.train()
    log.clock.close()
    assert [(step.mode.name, step.mode_step, step.train_step) for step in log.steps] == [
        ("EVAL", 0, 499),
        ("TRAIN", 500, 500),
    ]


def test_micro_batches_belong_to_one_step() -> None:
    log = Log()
    for _ in range(2):
        log.train(update=False)
        log.train(update=False)
        log.train()
    assert log.seen() == [("TRAIN", 0), ("TRAIN", 1)]


def test_two_optimizers_on_one_model_are_one_step() -> None:
    log = Log()
    for _ in range(2):
        log.train(optimizer=1)
        log.clock.begin_update(2)
        log.clock.end_update()
    assert log.seen() == [("TRAIN", 0), ("TRAIN", 1)]


def test_the_same_optimizer_again_begins_a_step_before_its_closure_runs_the_forward() -> None:
    log = Log()
    for _ in range(3):
        step = log.clock.begin_update(1)
        forward = log.clock.forward(grad=True, training=True)
        forward.backpropagated = True
        assert log.clock.train is step
        log.clock.end_update()
    assert log.seen() == [("TRAIN", 0), ("TRAIN", 1), ("TRAIN", 2)]


def test_evaluation_without_no_grad_is_evaluation_because_no_backward_follows() -> None:
    log = Log()
    log.train()
    for _ in range(2):
        log.clock.forward(grad=True, training=False)
    log.train()
    log.clock.forward(grad=True, training=True)
    assert log.seen() == [("TRAIN", 0), ("EVAL", 0), ("EVAL", 1), ("TRAIN", 1), ("EVAL", 2)]
    ends = [StepEnd(step.global_step, step.mode, step.mode_step, step.train_step, 0, 0) for step in log.steps]
    orders = [end.order for end in ends]
    assert orders == sorted(orders)


def test_evaluation_inside_an_accumulated_step_leaves_it_open() -> None:
    log = Log()
    log.train(update=False)
    log.evaluate()
    log.train()
    assert sorted(log.seen()) == [("EVAL", 0), ("TRAIN", 0)]


def test_a_gan_updates_two_models_in_two_steps_with_every_forward_in_its_own() -> None:
    log = Log()
    for _ in range(2):
        for _ in range(3):
            forward = log.clock.forward(grad=True, training=True)
            forward.backpropagated = True
        log.clock.begin_update(1)
        log.clock.end_update()
        log.train(optimizer=2)
    assert log.seen() == [("TRAIN", 0), ("TRAIN", 1), ("TRAIN", 2), ("TRAIN", 3)]


def trained(log: Log, model: int, helpers: Sequence[int] = ()) -> None:
    for helper in helpers:
        log.clock.forward(grad=False, training=False, model=helper)
    log.clock.forward(grad=True, training=True, model=model).backpropagated = True
    log.clock.begin_update(model)
    log.clock.end_update()


def test_several_calls_of_a_trained_model_before_another_is_trained_first_are_an_evaluation() -> None:
    """As between two folds of a cross-validation, without a loss."""
    log = Log()
    trained(log, 0)
    trained(log, 1, [0, 0, 0])
    trained(log, 1)
    assert log.seen() == [("TRAIN", 0), ("EVAL", 0), ("EVAL", 1), ("EVAL", 2), ("TRAIN", 1), ("TRAIN", 2)]
    assert [step.global_step for step in log.steps] == list(range(6))
    assert [step.train_step for step in log.steps] == [0, 0, 0, 0, 1, 2]
    assert [step.helpers for step in log.steps if step.mode is Mode.TRAIN] == [(), (), ()]


def test_calls_of_other_models_that_may_help_belong_to_the_step() -> None:
    """Of a teacher that was never trained, of one in the steps after the first, and of one that is called twice."""
    for models in ([2, 2, 2], [0, 2, 0], [0, 0]):
        log = Log()
        trained(log, 0)
        trained(log, 1, models)
        trained(log, 1, [0, 0, 0])
        assert log.seen() == [("TRAIN", 0), ("TRAIN", 1), ("TRAIN", 2)]


def test_records_of_forwards_and_of_the_update_are_kept_in_order() -> None:
    log = Log()
    for number in range(2):
        forward = log.clock.forward(grad=True, training=True)
        forward.backpropagated = True
        forward.records.rows[SCALARS].append((number, 1.0, 0.0))
    log.clock.begin_update(1).records.rows[SCALARS].append((9, 1.0, 0.0))
    log.clock.end_update()
    log.seen()
    assert [row[0] for row in log.steps[0].records.rows[SCALARS]] == [0, 1, 9]


def test_steps_opened_manually_are_numbered_the_same_way() -> None:
    log = Log()
    for mode in (Mode.TRAIN, Mode.EVAL, Mode.TRAIN):
        log.clock.end(log.clock.begin(mode))
    assert log.seen() == [("TRAIN", 0), ("EVAL", 0), ("TRAIN", 1)]


def forwards(log: Log, count: int) -> list[Forward]:
    return [log.clock.forward(grad=True, training=True) for _ in range(count)]


def test_a_process_that_never_trains_is_not_captured_for_ever_and_keeps_a_bounded_number_of_forwards() -> None:
    log = Log()
    forwards(log, 200)
    assert log.clock.train is not None
    assert not log.clock.train.due
    forwards(log, 4800)
    assert len(log.clock.train.forwards) <= 1100
    assert log.seen() == [("EVAL", step) for step in range(5000)]
    starts = [step.start_ns for step in log.steps]
    assert starts == sorted(starts)


def test_an_episode_of_many_forwards_with_one_backward_at_its_end_is_one_captured_step() -> None:
    log = Log()
    for _ in range(2):
        episode = forwards(log, 500)
        for forward in episode:
            forward.backpropagated = True
        assert log.clock.begin_update(1).due == (log.clock.next_train_step == 1)
        log.clock.end_update()
    assert log.seen() == [("TRAIN", 0), ("TRAIN", 1)]
    assert [step.due for step in log.steps] == [True, False]


def test_any_number_of_micro_batches_is_captured() -> None:
    log = Log()
    for _ in range(300):
        log.train(update=False)
        assert log.clock.train is not None
        assert log.clock.train.due
    log.train()
    assert log.seen() == [("TRAIN", 0)]


def test_two_calls_of_a_model_that_is_trained_in_evaluation_mode_are_one_step() -> None:
    log = Log()
    for _ in range(3):
        views = [log.clock.forward(grad=True, training=False) for _ in range(2)]
        for view in views:
            view.backpropagated = True
        log.clock.begin_update(1)
        log.clock.end_update()
    assert log.seen() == [("TRAIN", 0), ("TRAIN", 1), ("TRAIN", 2)]


def test_a_long_evaluation_without_no_grad_is_seen_while_it_goes_on() -> None:
    log = Log()
    log.train()
    for _ in range(40):
        log.clock.forward(grad=True, training=False)
    assert len(log.steps) == 40
    log.train()
    assert log.seen() == [("TRAIN", 0), *(("EVAL", number) for number in range(40)), ("TRAIN", 1)]
