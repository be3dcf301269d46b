"""Actions on findings and changes of status: stops of the run, and events delivered to actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from watchglass.actions import Action, Stopping, StopTraining, build_action
from watchglass.config import ActionSpec, Clock, EvaluatorConfig, absolute
from watchglass.control import WorkerProgress
from watchglass.evaluate.live.deliveries import MOST_AT_ONCE, Deliveries, key_among
from watchglass.evaluate.live.event_ids import event_id, is_event
from watchglass.records import Event, Finding, Observation, RuleStatus
from watchglass.store import JournalRecord, Store


class Acting:
    """The actions of one evaluator. For one thread; only :meth:`finish` waits.

    An action accepts an event at most once. The journal has the events that an earlier evaluator accepted: those
    without an outcome are delivered now.
    """

    def __init__(
        self,
        store: Store,
        config: EvaluatorConfig,
        run_id: str,
        *,
        clock: Clock = time,
        deliveries: Callable[..., Deliveries] = Deliveries,
    ) -> None:
        """Builds the actions.

        Args:
            store: The run's store.
            config: The settings of the evaluator.
            run_id: Identifier of the run.
            clock: The time.
            deliveries: Makes the deliveries of an action; for tests.

        Raises:
            WatchglassError: An action or a parameter is invalid.
        """
        self._run, self._run_id, self._clock = absolute(store.location), run_id, clock
        self._timing = config.timing
        self._stops: list[StopTraining] = []
        self._lines: list[Deliveries] = []
        short = [] if config.stop_on is None else [ActionSpec("StopTraining", {"severity": config.stop_on})]
        for spec in [*short, *config.actions]:
            action = build_action(spec)
            if isinstance(action, StopTraining):
                self._stops.append(action)
            elif isinstance(action, Action):
                key = key_among([line.key for line in self._lines], action.name)
                self._lines.append(deliveries(key, spec, action, store, clock=clock, timing=config.timing))
        grace_s = min((stop.grace_s for stop in self._stops if stop.grace_s is not None), default=config.grace_s)
        # One protocol for all of them: a training run is stopped once.
        self._stopping = Stopping(store, config.attempt, grace_s=grace_s, poll_s=config.poll_s, timing=config.timing)

    @property
    def stopping(self) -> bool:
        """Whether a stop is under way."""
        return self._stopping.busy

    @property
    def busy(self) -> bool:
        """Whether a stop or a delivery is under way or waits."""
        return self.stopping or any(line.waiting for line in self._lines)

    @property
    def delivers(self) -> bool:
        """Whether there are actions that events are delivered to."""
        return bool(self._lines)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Deliveries by action and outcome: ``{("Webhook", "done"): 3, ("Webhook", "waiting"): 1}``."""
        return {
            (line.key, outcome): count
            for line in self._lines
            for outcome, count in {**line.counts, "waiting": line.waiting}.items()
            if count
        }

    def resume(self, written: Iterable[JournalRecord]) -> None:
        """Go on with the deliveries of earlier evaluators, by their records in the journal."""
        records = list(written)
        findings = {record.id: record for record in records if isinstance(record, Finding)}
        observations = [r for r in records if isinstance(r, Observation) and r.kind.startswith("action_")]
        concluded = {
            (seen.data.get("action"), seen.data.get("event")) for seen in observations if seen.kind != "action_due"
        }
        lines = {line.key: line for line in self._lines}
        for seen in observations:
            line = lines.get(str(seen.data.get("action")))
            if line is None:
                continue
            due_id, time_ns = str(seen.data.get("event")), _whole(seen.data.get("time_ns"))
            event = None
            if seen.kind == "action_due" and (line.key, due_id) not in concluded:
                event = self._event_of(seen, findings, time_ns)
                if event is None:
                    continue  # its finding was not written and will be found again, or the event is forged
            elif seen.kind == "action_limited":
                rule = str(seen.data.get("rule", ""))
                event = Event("summary", due_id, self._run, self._run_id, seen.attempt, rule, time_ns)
            summary = seen.data.get("content")
            left_out = _whole(summary.get("left_out")) if isinstance(summary, dict) else 0
            line.resume(due_id, seen.kind, time_ns, event, left_out)

    def stop(self, findings: Sequence[Finding]) -> list[Observation]:
        """Stops the run where a new finding requires it; returns the observations to write."""
        return [
            seen
            for finding in findings
            if any(stop.concerned_by(finding) for stop in self._stops)
            for seen in self._stopping.found(finding)
        ]

    def found(self, findings: Sequence[Finding]) -> list[Observation]:
        """Accepts events for new findings; returns the observations to write together with the findings."""
        now_ns = self._clock.time_ns()
        return [seen for finding in findings for seen in self._accepted(self._finding_event(finding, now_ns))]

    def statuses(self, changed: Sequence[tuple[RuleStatus | None, RuleStatus]], attempt: int) -> list[Observation]:
        """Accepts events for rules whose status changed; returns the observations to write with it.

        A first status is no change.
        """
        accepted: list[Observation] = []
        for before, now in changed:
            if before is None or before.status is now.status:
                continue
            changed_id = event_id(
                self._run_id, "status", attempt, now.rule, before.status.value, now.status.value, now.reason
            )
            event = Event(
                "status", changed_id, self._run, self._run_id, attempt, now.rule, self._clock.time_ns(),
                status=now, previous=before.status,
            )  # fmt: skip
            accepted += self._accepted(event)
        return accepted

    def tick(self, workers: Sequence[WorkerProgress]) -> list[Observation]:
        """Continues stops and deliveries; returns the observations to write."""
        return [*self._stopping.tick(workers), *self._deliver(now=False)]

    def finish(
        self,
        write: Callable[[Sequence[Observation]], None],
        report: Callable[[str], None],
        *,
        ended: bool,
        pause: Callable[[float], bool],
        patience_s: float,
    ) -> None:
        """Waits for deliveries, within limits, and reports those that are left.

        Args:
            write: Takes observations to write.
            report: Takes a sentence for the user.
            ended: Whether the run has ended; deliveries that are left become dead letters. Else they stay due for the
                next evaluator.
            pause: Waits so many seconds, or less; returns False to end the wait.
            patience_s: Seconds to wait for one delivery to arrive; for all of them, five times as long.
        """
        begun_s = self._clock.monotonic()
        until_s = begun_s + (patience_s if ended else self._timing.leaving_s)
        all_s = self._timing.deliveries_ratio * patience_s
        latest_s = begun_s + all_s
        why, reported, arrived = "", not ended, 0
        while True:
            write(self._deliver(now=ended, may_start=ended))
            now_arrived = sum(line.counts["done"] for line in self._lines)
            if ended and now_arrived > arrived:
                arrived, until_s = now_arrived, min(self._clock.monotonic() + patience_s, latest_s)
            soonest = [line.next_s() for line in self._lines if ended or line.underway]
            if min((at for at in soonest if at is not None), default=until_s) >= until_s:
                break
            if not reported and self._clock.monotonic() - begun_s >= self._timing.reported_wait_s:
                reported = True
                waiting = ", ".join(f"{line.key} {line.waiting}" for line in self._lines if line.waiting)
                report(f"waiting for deliveries, {patience_s:g} s at most for the next one to arrive: {waiting}")
            if not ended:
                time.sleep(self._timing.delivery_look_s)
            elif not pause(self._timing.delivery_look_s):
                why = "the evaluator stopped waiting for deliveries, because it was requested to end"
                break
        if not why:
            limit = f"all {all_s:g} s" if until_s >= latest_s else f"the last {patience_s:g} s"
            why = f"it has not arrived within {limit} of waiting"
        for line in self._lines:
            if ended:
                line.give_up(f"the run has ended, and {why}")
                self._conclude(line, write, report)
            else:
                line.leave()
                if line.waiting:
                    report(f"{line.key}: {line.waiting} not delivered yet; the next evaluator continues with it")

    def leave(self) -> None:
        """End deliveries that are under way; they and those that wait stay due."""
        for line in self._lines:
            line.leave()

    def _conclude(
        self, line: Deliveries, write: Callable[[Sequence[Observation]], None], report: Callable[[str], None]
    ) -> None:
        """Writes dead letters, and reports what was not delivered."""
        while line.waiting:
            written = line.tick(may_start=False)
            write(written)
            if not written:
                report(f"{line.key}: {line.waiting} not delivered, and the store does not accept the dead letters now")
                break
        if line.counts["failed"]:
            report(
                f"{line.key}: {line.counts['failed']} not delivered ({line.failure:.200}), see dead-letters/ in the"
                " run; watchglass actions RUN --resend sends them again"
            )
        if line.counts["limited"]:
            report(
                f"{line.key}: {line.counts['limited']} not sent, because per_hour allows "
                f"{line.action.per_hour} within an hour"
            )

    def _deliver(self, *, now: bool, may_start: bool = True) -> list[Observation]:
        seen: list[Observation] = []
        for line in self._lines:
            seen += line.summary(now=now)
            running = sum(other.underway for other in self._lines)
            seen += line.tick(may_start=may_start and running < MOST_AT_ONCE)
        return seen

    def _accepted(self, event: Event) -> list[Observation]:
        return [seen for line in self._lines for seen in line.add(event)]

    def _event_of(self, due: Observation, findings: dict[str, Finding], time_ns: int) -> Event | None:
        """The event that an earlier evaluator wrote as due; None where its finding will be found again.

        Any process may have written the journal: a record that no evaluator would write gives None too.
        """
        finding = findings.get(str(due.data.get("finding")))
        if finding is not None:
            event = self._finding_event(finding, time_ns)
        else:
            try:
                event = replace(Event.from_json(due.data["content"]), run=self._run, run_id=self._run_id)
            except (LookupError, TypeError, ValueError, AttributeError):
                return None
        return event if event.id == due.data.get("event") and is_event(event) else None

    def _finding_event(self, finding: Finding, time_ns: int) -> Event:
        found_id = event_id(self._run_id, "finding", finding.id)
        return Event(
            "finding", found_id, self._run, self._run_id, finding.attempt, finding.rule, time_ns, finding=finding
        )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
