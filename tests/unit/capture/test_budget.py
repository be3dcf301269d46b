"""The budget as a closed loop: training runs whose costs are made up, and what it makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from watchglass.capture.limits import DEFAULT_LIMITS
from watchglass.capture.planning.budget import MAX_INTERVAL, Budget

US, MS = 1_000, 1_000_000
ALLOWANCE_NS = DEFAULT_LIMITS.allowance_ns


EACH_STEP, EACH_CAPTURE = (lambda step: 5 * MS), (lambda capture: MS)


def constant(value: float) -> Callable[[int], float]:
    return lambda step: value


@dataclass
class Training:
    """Runs by the clock that its costs make, and asks and tells the budget as the hook does.

    Attributes:
        step_ns: What a bare step takes, by number.
        capture_ns: What callbacks take of a captured step beside ``idle_ns``.
        idle_ns: What they take of any other on the full path.
        background_ns: What the recorder's thread works for a capture; it comes when ``every`` captures are there.
        steady: Whether steps between captures take the shortest path.
        busy: How many times as long everything takes as on an idle machine.
        model: The model that is trained; its steps count from 0.
    """

    budget: Budget
    step_ns: Callable[[int], float] = EACH_STEP
    capture_ns: Callable[[int], float] = EACH_CAPTURE
    idle_ns: float = 10 * US
    background_ns: float = 0.0
    every: int = 1
    steady: bool = False
    busy: float = 1.0
    model: int = 0
    number: int = 0
    captured: list[int] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)
    spent_ns: float = 0.0
    bare_ns: float = 0.0
    _waiting: int = 0

    def run(self, steps: int) -> Training:
        for _ in range(steps):
            self._step(self.number)
            self.number += 1
        return self

    def share(self, steps: int) -> float:
        """Our share of the time of the next ``steps`` steps."""
        spent_ns, bare_ns = self.spent_ns, self.bare_ns
        self.run(steps)
        spent_ns = self.spent_ns - spent_ns
        return spent_ns / (self.bare_ns - bare_ns + spent_ns)

    def _step(self, number: int) -> None:
        bare_ns = self.busy * self.step_ns(number)
        self.bare_ns += bare_ns
        due, background_ns = self.budget.due(number, self.model) and self.budget.pays(self.model), 0.0
        if self.steady and not due and self.budget.knows_idle:
            self.spent_ns += self.idle_ns / 4
            self.budget.passed(1, int(bare_ns + self.busy * self.idle_ns / 4), 0)
            return
        cost_ns = self.idle_ns
        if due:
            self.captured.append(number)
            cost_ns += self.capture_ns(len(self.captured) - 1)
            self._waiting += 1
            if self._waiting >= self.every:
                background_ns, self._waiting = self._waiting * self.background_ns, 0
        self.spent_ns += cost_ns + background_ns
        took_ns = self.busy * cost_ns
        if self.budget.spent(
            int(cost_ns),
            int(bare_ns + took_ns),
            captured=due,
            chosen=due,
            step=number,
            model=self.model,
            took_ns=int(took_ns),
            background_ns=background_ns,
        ):
            self.changes.append((number, self.budget.interval))


COSTS = [(0.01, 2), (0.3, 2), (1, 1.5), (1, 20), (30, 300), (8, 5), (200, 40)]


@pytest.mark.parametrize(("capture_ms", "step_ms"), COSTS)
@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("steady", [False, True])
def test_it_settles_at_the_shortest_power_of_two_that_keeps_the_share(
    capture_ms: float, step_ms: float, share: float, steady: bool
) -> None:
    training = Training(
        Budget(share), constant(step_ms * MS), constant(capture_ms * MS), idle_ns=2 * US, steady=steady
    )  # fmt: skip
    training.run(4 * training.run(64).budget.interval)
    settled = training.budget.interval
    assert settled & (settled - 1) == 0
    assert settled == 1 or 1e-3 * capture_ms / (settled / 2) > share * 1e-3 * step_ms - 3e-6
    assert training.share(8 * settled) <= share
    assert training.budget.interval == settled


def test_the_first_captures_are_not_what_is_judged() -> None:
    """They pay for reading the module tree and for cold caches."""
    warming = Training(
        Budget(0.01), capture_ns=lambda capture: 500 * MS if capture < 1 else 20 * MS if capture < 4 else 0.1 * MS
    ).run(200)
    warm = Training(Budget(0.01), capture_ns=constant(0.1 * MS)).run(200)
    assert warming.budget.interval == warm.budget.interval == 4


def test_all_steps_at_the_start_are_captured_then_eight_of_each_doubling_then_multiples_of_the_interval() -> None:
    training = Training(Budget(0.01), capture_ns=constant(2 * MS)).run(3000)
    interval = training.budget.interval
    assert interval == 64
    assert training.captured[:32] == list(range(32))
    for begin in (32, 64, 128, 256):
        assert [step for step in training.captured if begin <= step < 2 * begin] == [
            *range(begin, 2 * begin, begin // 8)
        ]
    assert [step for step in training.captured if step >= 512] == list(range(512, 3000, interval))


#: Milliseconds of a capture and of a step: tiny models, large ones, steps that take long.
SHORT = [(0.3, 0.2), (1.5, 0.2), (1.5, 2), (7, 40), (12, 10), (16, 300), (60, 300), (400, 1000), (3000, 300)]


@pytest.mark.parametrize(("capture_ms", "step_ms"), SHORT)
@pytest.mark.parametrize("seconds", [1, 5, 60])
def test_a_short_run_costs_what_is_allowed_and_has_captures_to_look_at(
    capture_ms: float, step_ms: float, seconds: int
) -> None:
    steps = int(seconds * 1000 / step_ms)
    training = Training(Budget(0.01), constant(step_ms * MS), constant(capture_ms * MS), idle_ns=0).run(steps)
    allowed_ns = ALLOWANCE_NS + 0.01 * (training.bare_ns + training.spent_ns)
    # What captures cost is known when two have been taken; the first one belongs to the start.
    assert training.spent_ns - training.budget.start_ns <= max(allowed_ns, capture_ms * MS)
    if capture_ms <= 10:
        assert len(training.captured) >= min(30, steps)
    assert len(training.captured) >= min(8, steps, 0.5 * allowed_ns / (capture_ms * MS))


def test_captures_come_up_to_the_end_of_a_short_run() -> None:
    """What is allowed is not used up by the first steps."""
    for capture_ms, step_ms in ((1.5, 0.2), (16, 40), (60, 300)):
        training = Training(Budget(0.01), constant(step_ms * MS), constant(capture_ms * MS), idle_ns=0)
        training.run(int(20_000 / step_ms))
        assert max(training.captured) > 0.5 * training.number
        assert training.budget.left_ns() > 0


def test_no_doubling_takes_more_than_a_part_of_what_is_left() -> None:
    training = Training(Budget(1e-9), constant(20 * MS), constant(10 * MS), idle_ns=0).run(1 << 14)
    found = [sum(1 << k <= step < 2 << k for step in training.captured) for k in range(5, 12)]
    assert found == sorted(found, reverse=True)
    assert 1 < found[0] <= 8
    assert found[-1] == 2
    assert training.spent_ns <= ALLOWANCE_NS


def test_bookkeeping_that_is_too_dear_leaves_the_allowance_and_a_quarter_of_the_share() -> None:
    """Steps of 0.2 ms with 30 microseconds of bookkeeping: 15 % that nothing can thin out."""
    training = Training(Budget(0.01), constant(0.2 * MS), constant(1.5 * MS), idle_ns=30 * US).run(300_000)
    assert len(training.captured) > 100
    assert max(training.captured) > 250_000
    captures_ns = len(training.captured) * 1.5 * MS
    assert captures_ns <= ALLOWANCE_NS + 0.25 * 0.01 * (training.bare_ns + training.spent_ns) + 3 * MS


def test_the_start_is_not_charged_to_captures() -> None:
    """Neither installing capture in the process, nor the first capture of a model, which imports and compiles."""

    def first(capture: int) -> float:
        return 10 * ALLOWANCE_NS if capture == 0 else 2 * MS

    late = Training(Budget(1e-9), constant(10 * MS), first)
    late.budget.began(10 * ALLOWANCE_NS)
    late.run(1000)
    quick = Training(Budget(1e-9), constant(10 * MS), constant(2 * MS)).run(1000)
    assert late.captured == quick.captured
    assert late.budget.start_ns > 19.9 * ALLOWANCE_NS


def test_a_capture_that_is_not_paid_for_is_not_taken() -> None:
    training = Training(Budget(0.01), constant(100 * MS), constant(600 * MS), idle_ns=0).run(2000)
    assert training.captured[:2] == [0, 1]
    # The second one left a debt of 0.1 s, and the next one must be paid for: 0.7 s at 1 % are 70 s.
    assert training.captured[2] >= 700


@pytest.mark.parametrize("interval", [1, 8, 64, MAX_INTERVAL])
def test_the_next_due_step_is_the_first_that_is_due(interval: int) -> None:
    budget = Budget(0.01)
    budget.interval = interval
    due = [step for step in range(5000) if budget.due(step)]
    for step in range(4000):
        assert budget.next_due(step) == next(each for each in due if each >= step)


@pytest.mark.parametrize("steady", [False, True])
def test_noise_does_not_make_it_restless(steady: bool) -> None:
    noise = random.Random(4)
    training = Training(
        Budget(0.01),
        step_ns=lambda step: 5 * MS * noise.lognormvariate(0, 0.4),
        capture_ns=lambda capture: 2 * MS * noise.lognormvariate(0, 0.4),
        background_ns=0.5 * MS,
        every=5,
        steady=steady,
    ).run(20_000)
    assert len([step for step, _ in training.changes if step > 1000]) <= 2
    assert training.share(20_000) <= 0.01


def test_a_disturbance_of_one_capture_changes_nothing() -> None:
    training = Training(Budget(0.01), capture_ns=lambda capture: 900 * MS if capture == 20 else MS).run(4000)
    assert {interval for step, interval in training.changes if step >= 8} <= {training.budget.interval}
    assert training.budget.interval == 32


@pytest.mark.parametrize("steady", [False, True])
def test_it_follows_a_training_run_that_changes_its_pace(steady: bool) -> None:
    """Steps become ten times as short: the same captures would cost ten times the share."""
    training = Training(
        Budget(0.01), step_ns=lambda step: (20 if step < 2000 else 2) * MS, idle_ns=4 * US, steady=steady
    ).run(1999)  # fmt: skip
    slow = training.budget.interval
    training.run(30 * 256)
    fast = training.budget.interval
    assert (slow, fast) == (8, 64)
    assert training.share(2048) <= 0.01
    # And back again, with one octave of hysteresis.
    training.step_ns = constant(20 * MS)
    training.run(60 * 256)
    assert training.budget.interval in (8, 16)


def test_it_follows_captures_that_become_dear() -> None:
    training = Training(Budget(0.01), capture_ns=lambda capture: (1 if capture < 100 else 16) * MS).run(20_000)
    assert training.budget.interval == 512
    assert training.share(8192) <= 0.01


@pytest.mark.parametrize("every", [1, 7])
def test_work_in_the_background_counts(every: int) -> None:
    """However many captures the thread writes at once."""
    alone = Training(Budget(0.01), capture_ns=constant(MS)).run(2000)
    both = Training(Budget(0.01), capture_ns=constant(MS), background_ns=7 * MS, every=every).run(8000)
    assert alone.budget.interval == 32
    assert both.budget.interval in (256, 512)
    assert both.share(512 * 28) <= 0.01


def test_what_every_step_costs_leaves_less_for_captures_but_never_nothing() -> None:
    def settled(idle_ns: float, steady: bool = False) -> int:
        return Training(Budget(0.01), idle_ns=idle_ns, steady=steady).run(30_000).budget.interval

    assert [settled(idle) for idle in (0, 30 * US, 49 * US, 500 * US)] == [32, 64, 128, 128]
    # On the shortest path a step costs a quarter of that.
    assert settled(49 * US, steady=True) == 64


def test_standing_work_of_the_thread_is_no_capture_s_fault() -> None:
    budget = Budget(0.01)
    for number in range(4000):
        due = budget.due(number)
        budget.spent(MS if due else 0, (6 if due else 5) * MS, captured=due, chosen=due, standing_ns=30 * US)
    assert budget.interval == 64
    budget = Budget(0.01)
    for number in range(100_000):
        due = budget.due(number)
        budget.spent(MS if due else 0, (6 if due else 5) * MS, captured=due, chosen=due, standing_ns=MS)
    assert budget.interval == 128, "even where rows alone cost more than the budget"


def test_captures_beside_those_that_were_planned_count_with_them() -> None:
    """Where two optimizers take turns each capture has a twin in the next step."""
    budget = Budget(0.01)
    spent_ns = bare_ns = 0
    for number in range(20_000):
        planned = budget.due(number)
        captured = planned or budget.due(number - 1)
        spent_ns += MS * captured * (number > 4000)
        bare_ns += 5 * MS * (number > 4000)
        cost_ns = MS if captured else 0
        budget.spent(cost_ns, 5 * MS + cost_ns, captured=captured, chosen=captured, planned=planned)
    assert budget.interval == 64
    assert spent_ns / bare_ns <= 0.01


def test_steps_on_the_shortest_path_are_counted() -> None:
    budget = Budget(0.01)
    for _ in range(8):
        budget.spent(20 * US, MS, captured=False, chosen=False)
    assert (budget.cost_ns, budget.train_ns) == (160 * US, 8 * MS)
    budget.passed(100, 100 * MS, 30 * US)
    assert (budget.cost_ns, budget.train_ns) == (160 * US + 100 * 5 * US + 30 * US, 108 * MS)


def test_nothing_is_known_of_idle_steps_before_some_were_seen() -> None:
    budget = Budget(0.01)
    for _ in range(32):
        assert not budget.knows_idle
        budget.spent(MS, 5 * MS, captured=True, chosen=True)
    for number in range(4):
        assert not budget.knows_idle
        budget.spent((4 - number) * US, 5 * MS, captured=False, chosen=False)
    assert budget.knows_idle


def test_relief_halves_captures_and_is_not_taken_back_at_once() -> None:
    training = Training(Budget(0.01), capture_ns=constant(0.01 * MS), idle_ns=0).run(100)
    budget = training.budget
    assert budget.interval == 1
    training.changes.clear()
    assert budget.relieve()
    assert budget.interval == 2
    assert not budget.relieve(), "what waits needs time to be written"
    training.run(2 * 4)
    assert budget.relieve()
    assert budget.interval == 4
    training.run(4 * 20)
    assert budget.interval == 4
    assert not training.changes
    # The disk has been fast again for a good while.
    training.run(4 * 200)
    assert budget.interval == 2
    assert len(training.changes) == 1


def test_relief_ends_at_the_longest_interval_and_leaves_a_fixed_one_alone() -> None:
    training = Training(Budget(0.01, allowance_ns=10**12), constant(MS), constant(100 * MS)).run(6 * MAX_INTERVAL)
    assert training.budget.interval == MAX_INTERVAL
    while training.budget.relieve():
        training.run(40 * MAX_INTERVAL)
    assert training.budget.interval == MAX_INTERVAL
    fixed = Training(Budget(0.01, fixed=7), capture_ns=constant(100 * MS))
    assert not fixed.budget.relieve()
    fixed.run(100)
    assert fixed.captured == list(range(0, 100, 7))
    assert not fixed.changes


def test_what_a_slower_rank_captures_is_part_of_what_a_faster_one_does() -> None:
    """Both at once are compared: ranks of one training go in step."""
    slow = Training(Budget(0.01), capture_ns=constant(9 * MS)).run(10_000)
    fast = Training(Budget(0.01), capture_ns=constant(1 * MS)).run(10_000)
    assert set(slow.captured) < set(fast.captured)


@pytest.mark.parametrize(("capture_ms", "step_ms"), [(1.5, 0.7), (1.5, 20), (7, 5), (30, 40), (60, 300), (200, 40)])
@pytest.mark.parametrize("steady", [False, True])
def test_equal_runs_capture_the_same_steps_on_an_idle_and_on_a_busy_machine(
    capture_ms: float, step_ms: float, steady: bool
) -> None:
    def run(busy: float) -> Training:
        costs = constant(step_ms * MS), constant(capture_ms * MS)
        return Training(Budget(0.01), *costs, idle_ns=20 * US, steady=steady, busy=busy).run(3000)

    assert run(15).captured == run(1).captured


@pytest.mark.parametrize("seed", range(4))
def test_captures_that_are_disturbed_by_other_programs_do_not_change_the_plan(seed: int) -> None:
    calm = Training(Budget(0.01), capture_ns=constant(4 * MS)).run(1500)
    noise = random.Random(seed)
    disturbed = [noise.uniform(3, 7) if noise.random() < 0.4 else 1 for _ in range(200)]
    busy = Training(Budget(0.01), capture_ns=lambda capture: 4 * MS * disturbed[capture]).run(1500)
    assert busy.captured == calm.captured


def test_captures_of_varying_cost_do_not_cost_much_more_than_twice_the_allowance() -> None:
    training = Training(Budget(0.01), capture_ns=lambda capture: (1 if capture % 4 else 80) * MS).run(2000)
    assert training.spent_ns < 2.6 * ALLOWANCE_NS + 0.01 * training.bare_ns


def test_a_long_run_has_captures_in_each_of_its_thirds_however_dear_they_are() -> None:
    for capture_ms in (1, 5, 20):
        for steps in (100, 500, 1350, 10_000):
            training = Training(Budget(0.01), constant(MS), constant(capture_ms * MS), idle_ns=0).run(steps)
            thirds = [sum(k * steps <= 3 * step < (k + 1) * steps for step in training.captured) for k in range(3)]
            assert min(thirds) >= 1, (capture_ms, steps, thirds)


def models(each: int, steps: int, capture_ms: float, step_ms: float = 0.7) -> tuple[Budget, list[Training]]:
    """Models that are trained one after the other, as in a search."""
    budget = Budget(0.01)
    costs = constant(step_ms * MS), constant(capture_ms * MS)
    return budget, [Training(budget, *costs, idle_ns=20 * US, model=model).run(steps) for model in range(each)]


@pytest.mark.parametrize("capture_ms", [0.5, 1.5, 4, 7])
def test_every_model_of_a_search_is_captured_over_its_own_steps(capture_ms: float) -> None:
    _, trained = models(16, 300, capture_ms)
    for training in trained:
        assert len(training.captured) >= 8
        assert min(training.captured) == 0
        assert max(training.captured) >= 32


def test_the_fifth_model_is_captured_although_the_first_has_used_the_allowance() -> None:
    budget = Budget(1e-9)
    costs = constant(10 * MS), constant(5 * MS)
    Training(budget, *costs, idle_ns=0).run(100_000)
    later = [Training(budget, *costs, idle_ns=0, model=model).run(100) for model in range(1, 5)]
    assert [len(training.captured) for training in later] >= [8, 8, 8, 8]


def test_ten_thousand_folds_cost_what_is_allowed_for_sixteen_models_and_a_share() -> None:
    budget, trained = models(10_000, 20, 1.5)
    spent_ns = sum(1.5 * MS * len(training.captured) for training in trained)
    time_ns = sum(training.bare_ns + training.spent_ns for training in trained)
    assert budget.allowance_ns == pytest.approx(ALLOWANCE_NS * (1 + 15 / 8))
    assert spent_ns - budget.start_ns <= budget.allowance_ns + 0.01 * time_ns
    assert sum(map(bool, (training.captured for training in trained[5000:]))) > 20, "what is left is not forgotten"


def test_only_a_model_that_is_trained_brings_a_purse() -> None:
    budget = Budget(0.01)
    before = budget.allowance_ns
    assert budget.due(0, -3)
    assert budget.next_due(5, -3) == 5
    assert budget.allowance_ns == before


@pytest.mark.parametrize("begin", [1, 77, 5000, 100_003])
def test_a_resumed_run_is_dense_from_its_first_step(begin: int) -> None:
    training = Training(Budget(1e-9), constant(MS), constant(MS), idle_ns=0, number=begin)
    training.budget.begins_at = begin
    training.run(1000)
    assert training.captured[:32] == list(range(begin, begin + 32))
    rest = [step - begin for step in training.captured[32:]]
    assert [sum(k <= step < 2 * k for step in rest) for k in (32, 64, 128, 256)] in ([8] * 4, [9, 8, 8, 8])
    due = [step for step in range(begin, begin + 1000) if training.budget.due(step)]
    for step in range(begin, begin + 900):
        assert training.budget.next_due(step) == next(each for each in due if each >= step)
