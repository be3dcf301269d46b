"""One rule over a run: its instances, the moments and findings of each, and the status of the rule."""

from __future__ import annotations

import hashlib
import inspect
import json
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from watchglass.config import RuleSpec, values
from watchglass.errors import CompactedError, PluginFileError, WatchglassError
from watchglass.evaluate.engine.examined import hardly_examined
from watchglass.evaluate.engine.folding import Folded, Folding
from watchglass.evaluate.engine.observing import SHOWN, tick_of
from watchglass.evaluate.engine.rule_needs import RuleNeeds
from watchglass.evaluate.engine.rule_status import (
    Examined,
    ExaminedKey,
    Fault,
    RuleFacts,
    SeatKey,
    Tally,
    WorkerFacts,
    in_order,
    silence,
)
from watchglass.evaluate.engine.watchdog import CallTimeout, Watchdog
from watchglass.evaluate.engine.windowing import Cutting
from watchglass.records import Finding, Mode, Observation, RuleStatus, Severity, Status, as_json
from watchglass.rules import Rule, build_rule, built_in_knowledge, readable_statistics
from watchglass.store import decode_finding, encode_record, scan
from watchglass.tables import (
    MOST_RAW_BYTES,
    Between,
    JointStep,
    RawTensors,
    Readable,
    StepView,
    Window,
    Written,
)

_T = TypeVar("_T")
#: The argument of a call of an instance.
About = StepView | JointStep | Between
_Asked = TypeVar("_Asked", bound=About)

#: The most findings that are taken from a rule at one step.
MOST_AT_ONCE = 4096
#: The most characters of a text from a rule: a traceback, a reason.
_MOST_TEXT = 16_384


class Kept(NamedTuple):
    """A finding that is kept, and its place among all."""

    attempt: int
    worker: str
    model: int
    folded: Folded


@dataclass
class _Seat:
    """The place of one instance of a rule: it stays when the instance stops."""

    key: SeatKey  #: Attempt, worker (or the group that trains together) and model.
    group: str  #: Its workers: ``""`` for all that train together, else the one that trains separately.
    rule: Rule | None = None  #: The instance; None where it stopped, or was shown the end.
    folding: Folding = field(default_factory=Folding)  #: Its findings.
    last: StepView | JointStep | None = None  #: The last step that it saw.
    #: The last TRAIN step that it saw, for a rule that sees one stage of the training only.
    trained: StepView | None = None
    fault: Fault | None = None  #: Why it stopped.
    not_applicable: str = ""  #: Why it does not apply.
    ended: bool = False  #: Whether it was shown the end.
    observed: int = 0  #: Number of observations that it was shown.
    between: dict[str, int] = field(default_factory=dict)  #: Number of ticks, and of windows, that it was shown.


class RuleRunner:
    """One rule over all workers and their models. For one thread.

    Args:
        spec: The rule.
        calibration: Which set of thresholds.
        watchdog: Ends calls that take too long.
        run_id: Identifier of the run.
        readable: What rules read of statistics.
    """

    def __init__(self, spec: RuleSpec, calibration: str, watchdog: Watchdog, run_id: str, readable: Readable) -> None:
        """Builds the rule once, so that a wrong name or parameter shows before any step.

        Raises:
            UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`build_rule`.
        """
        self._build: Callable[[], Rule] = lambda: build_rule(spec, calibration)
        self._watchdog, self._run_id, self._readable = watchdog, run_id, readable
        # A finding names causes: the time to read them is not part of the time of the first rule that finds something.
        built_in_knowledge()
        try:
            prototype = watchdog.call(self._build)
        except CallTimeout as error:
            raise PluginFileError(
                f"{spec.name} must be built within {watchdog.timeout_s:g} s but took longer, here: {error.place}"
            ) from None
        #: Name of the rule.
        self.name = prototype.name
        #: The runs that it compares with, by parameter.
        self.compares = {name: str(getattr(prototype, name) or "") for name in prototype.compares}
        cls = type(prototype)
        #: Whether it takes ticks, and observations of lost workers.
        self.ticks = cls.tick is not Rule.tick
        kinds = {kind: need.optional for need in prototype.needs for kind in need.observations}
        self.observes = bool(SHOWN & kinds.keys())
        optional_kinds = {"tick": not self.ticks, **kinds}
        #: Kinds of observations without which it does not apply.
        self.required_observations = tuple(kind for kind, optional in optional_kinds.items() if not optional)
        streams = prototype.streams
        self._declared = readable_statistics(prototype.needs, streams)
        readable.add(self._declared)
        #: Cuts its windows; None where it takes none.
        self.cutting = None if streams is None else Cutting(streams, run_id)
        self._checks_windows = cls.check_window is not Rule.check_window
        self._steps = cls.check_step is not Rule.check_step
        #: Whether an instance sees all workers that train together.
        self.joint = self._steps or cls.check is Rule.check
        #: Whether one instance sees the windows of an attempt, whatever its workers do.
        self._of_attempt = self.joint and not self._steps and not self.ticks
        #: Why it is never called, "" where it is.
        self.not_applicable = ""
        #: The present call: its method, its instance and its argument.
        self.asking: tuple[str, _Seat, About] | None = None
        self._class: type[Rule] = cls
        #: Whether it is not called at steps with scalars alone.
        self._idle = cls.idle_at_plain_steps
        self._parameters = values(prototype)
        self._plain_parameters: dict[str, Any] = json.loads(json.dumps(as_json(self._parameters), default=str))
        # A user may correct a rule while it is evaluated: what is evaluated now is the code before. Those of watchglass
        # stay as they are installed, and to find the code of all takes longer than to evaluate a short run.
        if not cls.__module__.startswith("watchglass."):
            self._fingerprint()
        self._needs = RuleNeeds(prototype.needs, self.cutting)
        self._of_tensors = any(
            need.of_tensors and not need.optional and Mode.TRAIN in need.modes for need in prototype.needs
        )
        self._raw_bytes = MOST_RAW_BYTES if any(need.raw for need in prototype.needs) else 0
        self._tally = Tally()
        self._kept: list[Kept] = []
        self._seats: dict[SeatKey, _Seat] = {}
        self._observed: dict[tuple[int, str], list[Observation]] = {}
        self._so_far: tuple[WorkerFacts, ...] = ()
        self._noted: list[Observation] = []
        self._stops: dict[SeatKey, Observation] = {}

    def step(self, step: JointStep, others: Sequence[Mapping[str, StepView | None]]) -> list[Finding]:
        """Shows the rule one step of workers that train together; returns new findings.

        Args:
            step: The step.
            others: For each of its views the views of other runs, by location, if there are any to compare with.

        Raises:
            StoreError, CompactedError: The store refused data that the rule needed. All of the run must be evaluated
                again, since the state of the rule after this step is unknown.
        """
        if self.not_applicable:
            return []
        if self.compares:
            pairs = zip(step.views, others, strict=True)
            compared = [({p: found.get(run) for p, run in self.compares.items()}, view) for view, found in pairs]
            step = replace(step, views=tuple(replace(view, others=found) for found, view in compared))
        if self.cutting is not None:
            step = step.showing(self.cutting.recent(step.attempt))
        new: list[Finding] = []
        for key, part in self._parts(step):
            seat = self._seats.get(key) or self._seated(key, "" if self._of_attempt else step.worker, part)
            views = (part,) if isinstance(part, StepView) else part.views
            if seat.fault is None:
                for view in views:
                    self._needs.look(view)
            if self._class.starts_with and isinstance(part, StepView):
                part, ended = self._in_stage(seat, part)
                new += ended
            # Only steps of workers that train separately come in any order.
            if seat.last is None or not self._of_attempt or _newness(part) >= _newness(seat.last):
                seat.last = part
            if seat.rule is None or (self.joint and not self._steps) or part.mode not in self._class.modes:
                continue
            part = self._with_observed(seat, part)
            if not (self._idle and not part.observed and all(view.is_plain for view in views)):
                method = getattr(seat.rule, "check_step" if self._steps else "check")
                new += self._found(seat, part, "check", method)
        return new

    def _in_stage(self, seat: _Seat, view: StepView) -> tuple[StepView, list[Finding]]:
        """A step as an instance for its stage sees it, and the findings at the end of the stage before."""
        new: list[Finding] = []
        before, number = seat.trained, self._class.starts_with
        if before is not None and seat.rule is not None and getattr(before, number) != getattr(view, number):
            # The evaluation that ends with this step was of the stage before.
            last = replace(before, stretches=view.stretches)
            new = self._found(seat, last, "finish", seat.rule.finish)
            if seat.rule is not None:
                seat.rule = self._ask(seat, view, "start", self._build)
            view = replace(view, stretches=())
        if view.mode is Mode.TRAIN:
            seat.trained = view
        return view, new

    def observe(self, seen: Observation) -> list[Finding]:
        """Takes in an observation: shows a tick at once, and a lost worker with the next step.

        Raises:
            StoreError, CompactedError: See :meth:`step`.
        """
        if self.not_applicable:
            return []
        if self.observes and seen.kind in SHOWN:
            self._observed.setdefault((seen.attempt, seen.group), []).append(seen)
        if not self.ticks or seen.kind != "tick":
            return []
        return self._between(tick_of(seen, self._run_id), "tick")

    def written(self, written: Written) -> list[Finding]:
        """Takes in the rows of a stream, and shows the windows that end by their watermark.

        Raises:
            StoreError, CompactedError: See :meth:`step`.
        """
        self._needs.look_for_metrics(written.rows.get("samples"))
        windows = [] if self.cutting is None or self.not_applicable else self.cutting.cut(written)
        if not self._checks_windows:
            return []
        return [found for window in windows for found in self._between(window, "check_window")]

    def _between(self, moment: Between, method: str) -> list[Finding]:
        """Shows a moment between two steps to all instances of its workers."""
        if self.joint and (moment.attempt, moment.worker, 0) not in self._seats:
            self._seated((moment.attempt, moment.worker, 0), moment.worker, moment)
        new: list[Finding] = []
        for seat in self._seats.values():
            if seat.rule is not None and (seat.key[0], seat.group) == (moment.attempt, moment.worker):
                number = seat.between.get(method, 0)
                seat.between[method] = number + 1
                about = replace(moment, last=seat.last, number=number)
                new += self._found(seat, about, method, getattr(seat.rule, method))
        return new

    def finish(self, last: JointStep) -> list[Finding]:
        """Shows the rule the end of an attempt, for workers that train together.

        Args:
            last: The last step of each of them, again.

        Raises:
            StoreError, CompactedError: See :meth:`step`.
        """
        new: list[Finding] = []
        for key, part in self._parts(last):
            if key[1] != part.worker:
                continue  # it ends with the last of the workers
            seat = self._seats.get(key)
            if seat is None or seat.ended:
                continue
            if self._of_attempt:
                seat.last = part
            if seat.rule is not None:
                new += self._found(seat, self._with_observed(seat, part), "finish", seat.rule.finish)
            if not any(finding.severity is not Severity.INFO for _, finding in seat.folding.findings()):
                self._ask_whether_applicable(seat)
            seat.ended, seat.rule, seat.last = True, None, None
        self._observed.pop((last.attempt, last.worker), None)
        return new

    def _fingerprint(self) -> str:
        """Equal for equal code with equal parameters: a corrected rule is called again."""
        cls: Any = self._class
        text = json.dumps([self.name, _source(cls), self._parameters], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def stop(self, seen: Observation) -> None:
        """Notes where the rule took too long in an earlier evaluation: it is not called there again."""
        if seen.data.get("fingerprint") == self._fingerprint():
            model = seen.data.get("model", 0)
            self._stops[seen.attempt, str(seen.data.get("worker")), model if type(model) is int else 0] = seen

    def take_kept(self) -> list[Kept]:
        """Findings that are new since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def take_changed(self) -> list[Finding]:
        """Findings that were seen again since the last call."""
        return [finding for seat in self._seats.values() for finding in seat.folding.take_changed()]

    def take_observations(self) -> list[Observation]:
        """The calls since the last one of this method in which the rule raised, or took too long."""
        noted, self._noted = self._noted, []
        return noted

    def remember(self) -> None:
        """Keeps the facts as they are before the end, for :meth:`facts`."""
        self._so_far = tuple(self._facts())

    def facts(self) -> RuleFacts:
        """The facts of the rule so far, and those at the end of workers and attempts that have ended."""
        facts = self._facts()
        at_end = [worker for worker in facts if self._seats[worker.attempt, worker.worker, worker.model].ended]
        so_far = self._so_far or [w for w in facts if not self._seats[w.attempt, w.worker, w.model].ended]
        return RuleFacts(
            self.name, tuple(in_order(so_far)), tuple(in_order(at_end)), self._needs.met(), self.not_applicable,
            self._of_tensors, self._plain_parameters,
        )  # fmt: skip

    def status(self, examined: Mapping[ExaminedKey, Examined], *, ended: bool) -> RuleStatus:
        """The status of the rule.

        Args:
            examined: The steps of each model.
            ended: Whether the run has ended.
        """
        if self.not_applicable:
            return RuleStatus(self.name, Status.NOT_APPLICABLE, self.not_applicable, self._plain_parameters)
        found = self._tally.status(
            self.name,
            self._needs.over_all(),
            ended=ended,
            silent=lambda: silence(self._facts()),
            unexamined=lambda: hardly_examined(examined, self._facts()) if self._of_tensors else "",
        )
        return replace(found, parameters=self._plain_parameters) if self._plain_parameters else found

    def timed_out(self, when: str, seat: _Seat, about: About, place: str) -> Observation:
        """The observation of a call that took too long.

        Args:
            when: The method: ``"start"``, ``"check"``, ``"check_window"``, ``"tick"``, ``"finish"`` or
                ``"applicable"``.
            seat: The instance.
            about: The argument of the call.
            place: The place where it was ended.
        """
        attempt, worker, model = seat.key
        data = {
            "rule": self.name, "worker": worker, "model": model, "when": when,
            "global_step": _number(about),
            "text": f"took longer than {self._watchdog.timeout_s:g} s at {_place(about)}, in:\n{place}",
            "fingerprint": self._fingerprint(),
        }  # fmt: skip
        return Observation("rule_timed_out", attempt, about.order, data)

    def _parts(self, step: JointStep) -> Sequence[tuple[SeatKey, StepView | JointStep]]:
        """What the instances of the rule see of a step, by the keys of their seats."""
        attempt = step.attempt
        if not self.joint:
            return [((attempt, view.worker, view.model), view) for view in step.views]
        if self._steps:
            return [((attempt, part.worker, part.model), part) for part in step.by_model]
        return [((attempt, "" if self._of_attempt else step.worker, 0), step)]

    def _seated(self, key: SeatKey, group: str, about: About) -> _Seat:
        seat = self._seats[key] = _Seat(key, group)
        seat.rule = self._ask(seat, about, "start", self._build)
        return seat

    def _with_observed(self, seat: _Seat, about: _Asked) -> _Asked:
        """A step with the observations since the step before."""
        rows = self._observed.get((about.attempt, seat.group), ()) if self._observed else ()
        if seat.observed == len(rows):
            return about
        new, seat.observed = tuple(rows[seat.observed :]), len(rows)
        return replace(about, observed=new)  # type: ignore[arg-type]  # a tick has no such field in use

    def _facts(self) -> list[WorkerFacts]:
        return [
            WorkerFacts(
                attempt, worker, tuple(seat.folding.findings()), seat.folding.dropped, seat.fault, seat.not_applicable,
                model,
            )
            for (attempt, worker, model), seat in self._seats.items()
        ]  # fmt: skip

    def _ask_whether_applicable(self, seat: _Seat) -> None:
        rule, last = seat.rule, seat.last
        if rule is None or last is None:
            return
        reason = self._ask(seat, last, "applicable", lambda: str(rule.applicable(last) or ""))
        seat.not_applicable = _shortened(reason or "")

    def _found(
        self, seat: _Seat, about: _Asked, when: str, question: Callable[[_Asked], Iterable[Finding] | None]
    ) -> list[Finding]:
        taken: list[Finding] = []
        dropped = seat.folding.dropped
        left = self._ask(seat, about, when, lambda: _take(question(about), seat.folding, taken), taken)
        seat.folding.dropped += left or 0
        if not taken:
            return []
        order = about.order
        new = [kept for finding in taken if (kept := seat.folding.add(finding, order)) is not None]
        self._kept += [Kept(*seat.key, kept) for kept in new]
        self._tally.find((kept.finding for kept in new), seat.folding.dropped - dropped)
        return [kept.finding for kept in new]

    def _ask(
        self, seat: _Seat, about: About, when: str, question: Callable[[], _T], taken: list[Finding] | None = None
    ) -> _T | None:
        """The answer of an instance; None where it fails, which stops it.

        Its findings before it raised count. Findings before it took too long do not: another evaluation, which stops
        the instance there, does not call it at all.
        """
        if self._stops:
            stop = self._stops.get(seat.key)
            if stop is not None and (stop.data.get("when"), stop.data.get("global_step")) == (when, _number(about)):
                self._fail(seat, about, str(stop.data.get("text")))
                return None
        raw = _raw_of(about)
        for each in raw:
            each.left_bytes, each.refused = self._raw_bytes // len(raw), False
        self.asking = (when, seat, about)
        self._readable.rule, self._readable.declared = self.name, self._declared
        try:
            return self._watchdog.call(question)
        except CallTimeout as error:
            if taken is not None:
                taken.clear()
            seen = self.timed_out(when, seat, about, error.place)
            self._noted.append(seen)
            self._fail(seat, about, seen.data["text"])
        except (Exception, SystemExit, GeneratorExit) as error:
            if any(each.refused for each in raw):
                raise CompactedError(f"{self.name} could not read a whole tensor: {error}") from error
            text = _shortened(traceback.format_exc(limit=-8))
            self._fail(seat, about, f"raised at {_place(about)}:\n{text}")
            data = {"rule": self.name, "traceback": text}
            self._noted.append(Observation("rule_error", about.attempt, about.order, data))
        finally:
            self.asking = self._readable.declared = None
        return None

    def _fail(self, seat: _Seat, about: About, text: str) -> None:
        seat.rule = None
        seat.fault = Fault(about.order, text)
        self._tally.fail(*seat.key, seat.fault)


def _raw_of(about: About) -> list[RawTensors]:
    """The readers of whole tensors in the argument of a call."""
    if type(about) is StepView and about.records.raw is None:
        return []
    views = about.views if isinstance(about, JointStep) else () if isinstance(about, Between) else (about,)
    return [view.records.raw for view in views if view.records.raw is not None]


def _newness(about: StepView | JointStep) -> tuple[Any, ...]:
    """Steps of workers that train separately come in any order between two windows: the newest one is the last."""
    return about.order, about.worker


def _number(about: About) -> int:
    """The number of a moment among those of its kind that an instance sees."""
    return about.number if isinstance(about, Between) else about.global_step


def _place(about: About) -> str:
    if isinstance(about, Between):
        what = f"window {about.number + 1} of stream {about.stream}" if isinstance(about, Window) else ""
        return what or f"tick {about.number + 1} of {about.worker or 'all workers'}"
    return f"{about.mode.name} step {about.mode_step} of {about.worker or 'all workers'}"


def _shortened(text: str) -> str:
    """The beginning and the end of a text that is too long to read."""
    half = _MOST_TEXT // 2
    return text if len(text) <= _MOST_TEXT else f"{text[:half]}\n... {len(text) - 2 * half} more ...\n{text[-half:]}"


def _take(found: Iterable[Finding] | None, folding: Folding, taken: list[Finding]) -> int:
    """Takes what a rule finds at one step, up to a limit; returns how many more are known to be there."""
    if found is None:
        return 0
    rows = iter(found)
    for finding in islice(rows, MOST_AT_ONCE):
        if not isinstance(finding, Finding):
            raise TypeError(f"check must yield findings, see Rule.finding, but yielded {finding!r:.100}")
        taken.append(_plain(finding) if folding.would_keep(finding) else finding)
    if len(taken) < MOST_AT_ONCE:
        return 0
    if isinstance(found, Sized):
        return len(found) - MOST_AT_ONCE
    more = next(rows, None) is not None
    if isinstance(rows, Generator):
        rows.close()
    return int(more)


def _plain(finding: Finding) -> Finding:
    """A finding as a reader of the journal gets it: with plain values, which the rule cannot change any more."""
    try:
        (frame,) = scan(encode_record(finding)).frames
        return decode_finding(bytes(frame.payload))
    except (TypeError, ValueError, AttributeError, WatchglassError) as error:
        what = f"value {finding.value!r:.60}, limit {finding.limit!r:.60}, message {finding.message!r:.60}"
        raise TypeError(f"a finding must hold plain values, see Rule.finding, but has {what}: {error}") from error


@lru_cache(maxsize=256)
def _source(cls: type[Any]) -> str:
    """The code of a class; to find where one ends takes as long as a thousand steps of most rules."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""
