"""The cost of watching a training run: callbacks, work of the recorder and of devices, memory."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from watchglass.capture.planning.plan import Plan
from watchglass.record import OpenStep, Recorder
from watchglass.records import facts

#: Captures that share one measurement of device time, which arrives late.
_SHARING = 8


class Memory:
    """Counts the bytes that capture holds on each device. For the training thread."""

    def __init__(self) -> None:
        self._held: defaultdict[str, int] = defaultdict(int)
        self.peak: dict[str, int] = {}

    def hold(self, device: str, size: int) -> None:
        """Add bytes that are held; a negative number for bytes that are freed."""
        self._held[device] += size
        self.peak[device] = max(self.peak.get(device, 0), self._held[device])


class Cost:
    """Adds up the cost of watching one training run. For the training thread.

    Args:
        plan: Its budget learns the cost of each step, and chooses the interval.
        recorder: Its thread's time is part of the cost.
        report_ns: Time between two facts on the cost so far.
        now_ns: Clock of callbacks.
        used_ns: Processor time of the calling thread. Reading it is a system call, so it is read in captured steps and
            in a sample of the others.

    Attributes:
        now_ns: Clock of callbacks.
        used_ns: Processor time of the calling thread.
        measures: Whether a step is open whose processor time is measured: its callbacks are reported by
            :meth:`entered` and :meth:`left`.
        callbacks_ns: Time of callbacks since the last step was accounted for.
        memory: Bytes that capture holds.
        device_ns: Upper bound of the time that devices have spent on statistics so far. Only the recorder's thread
            adds to it; the training thread reads it.
    """

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        report_ns: int,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        used_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.report_ns = report_ns
        self.now_ns, self.used_ns = now_ns, used_ns
        self.measures = False
        self.callbacks_ns = 0
        self.memory = Memory()
        self.device_ns = 0
        # The plan, not its budget: a new configuration brings a new budget.
        self._plan = plan
        self._recorder = recorder
        self._steps = self._rested = 0
        self._last_end_ns = self._reported_ns = 0
        self._background_ns = 0.0
        self._device_ns = 0
        # Of callbacks before the open step; of those in it, if it is measured: how long they took, processor time.
        self._between_ns = self._took_ns = self._worked_ns = 0
        # When the running callback of a measured step began, or the step in it, by both clocks; None between callbacks.
        self._since: tuple[int, int] | None = None
        self._arrived_ns: deque[int] = deque(maxlen=_SHARING)

    def began(self, cost_ns: int) -> None:
        """Add the time of installing capture in the process; the time of the run begins with it."""
        self._plan.budget.began(cost_ns)

    def entered(self, now_ns: int) -> None:
        """A callback of a measured step begins."""
        self._since = now_ns, self.used_ns()

    def left(self, now_ns: int) -> int:
        """A callback of a measured step ends, or the step in it; returns how long it took."""
        if self._since is None:
            return 0
        began_ns, used_ns = self._since
        self._since = None
        self._took_ns += now_ns - began_ns
        self._worked_ns += self.used_ns() - used_ns
        return now_ns - began_ns

    def step_opened(self, *, due: bool) -> None:
        """A TRAIN step opens in the running callback."""
        self._between_ns = self.callbacks_ns
        self._took_ns = self._worked_ns = 0
        self.measures, self._since = due or self._plan.budget.samples, None
        if self.measures:
            self.entered(self.now_ns())

    def step_ended(self, step: OpenStep, own_step: int) -> None:
        """Account for a finished TRAIN step, number ``own_step`` of its model; its records get facts on the cost."""
        self._steps += 1
        # The rest of the running callback belongs to the next step, which gets all of its time.
        cost_ns, self.callbacks_ns = self.callbacks_ns - self._between_ns, 0
        if self.measures:
            self.callbacks_ns = -self.left(self.now_ns())
            cost_ns = self._worked_ns
        self.measures = False
        between_ns, self._between_ns = self._between_ns, 0
        duration_ns = step.end_ns - (self._last_end_ns or step.start_ns)
        self._last_end_ns = step.end_ns
        background_ns = device_ns = 0.0
        if step.due:
            worked_ns = self._recorder.work.captures_cpu_ns
            background_ns, self._background_ns = worked_ns - self._background_ns, worked_ns
            device_ns = self._share_of_devices()
        budget = self._plan.budget
        chosen = step.due and self._plan.chosen
        changed = budget.spent(
            cost_ns, max(duration_ns, cost_ns), captured=step.due, chosen=chosen, step=own_step, model=step.model,
            planned=budget.due(own_step, step.model), took_ns=self._took_ns, between_ns=between_ns,
            background_ns=background_ns, device_ns=device_ns, standing_ns=self._recorder.work.step_cpu_ns,
        )  # fmt: skip
        if chosen and self._recorder.pressure:
            changed |= budget.relieve()
        if changed:
            thinned = facts.CaptureInterval(budget.interval, budget.captures_per_doubling)
            step.records.add_fact(thinned, "budget")
        self._reported_ns = self._reported_ns or step.end_ns
        if step.due and step.end_ns - self._reported_ns > self.report_ns:
            # A process that is killed writes no final counters.
            self._reported_ns = step.end_ns
            step.records.add_fact(facts.CaptureCost({**self.report(), **self._recorder.report()}), "budget")

    def steady_steps_ended(self, steps: int, start_ns: int, end_ns: int, extra_ns: int, rested: int = 0) -> None:
        """Add steps on the fast path.

        Args:
            steps: How many.
            start_ns: When the first began, by the clock of steps.
            end_ns: When the last ended.
            extra_ns: Time of callbacks beyond their usual cost.
            rested: How many of them were only counted.
        """
        if steps:
            self._steps += steps
            self._rested += rested
            self._last_end_ns = end_ns
            self._plan.budget.passed(steps, end_ns - start_ns, extra_ns, rested)

    def _share_of_devices(self) -> float:
        """Device time of one capture, averaged over the last ones."""
        worked_ns = self.device_ns  # read once: the recorder's thread may add to it meanwhile
        self._arrived_ns.append(worked_ns - self._device_ns)
        self._device_ns = worked_ns
        return sum(self._arrived_ns) / _SHARING

    def report(self) -> dict[str, Any]:
        """Counters of the training thread; :meth:`Recorder.report` has the others."""
        budget, peak = self._plan.budget, dict(self.memory.peak)
        peak["cpu"] = peak.get("cpu", 0) + self._recorder.peak_bytes
        return {
            "callback_ns": budget.cost_ns, "start_ns": budget.start_ns, "device_ns": self.device_ns,
            "train_ns": budget.train_ns, "train_steps": self._steps,
            "recorded_steps": self._steps - self._rested, "captured_steps": budget.captures,
            "overhead_budget": budget.share, "allowance_ns": budget.allowance_ns, "interval": budget.interval,
            "fixed_interval": budget.fixed is not None, "peak_bytes": peak,
        }  # fmt: skip
