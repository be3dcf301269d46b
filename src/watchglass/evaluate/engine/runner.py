"""One rule over a run: an instance for each attempt, worker and model, its findings, where it stands."""

from __future__ import annotations

import hashlib
import inspect
import json
import traceback
from bisect import insort
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

from watchglass.config import RuleSpec, values
from watchglass.errors import CompactedError, PluginFileError, StoreError, WatchglassError
from watchglass.evaluate.engine.folding import Folded, Folding
from watchglass.evaluate.engine.guard import CallTimeout, Guard
from watchglass.evaluate.engine.standing import (
    Fault,
    Met,
    RuleFacts,
    SeatKey,
    Tally,
    WorkerFacts,
    best,
    in_order,
    need_order,
    silence,
)
from watchglass.evaluate.engine.starvation import NeedSeen
from watchglass.records import Finding, Observation, RuleStatus, Severity, Status
from watchglass.rules import Rule, build_rule
from watchglass.run import MOST_RAW_BYTES, StepView
from watchglass.store import decode_finding, encode_finding, scan

_T = TypeVar("_T")

#: Findings that are taken of a rule at one step; it is not asked for more.
MOST_AT_ONCE = 4096
#: Characters that are kept of what a rule says of itself: a traceback, a reason.
_MOST_TEXT = 16_384

#: Rules that have looked at histograms, which are fetched when somebody does: for them they are fetched before.
_looking_closer: set[str] = set()


class Kept(NamedTuple):
    """A finding that is kept, and where it belongs among all."""

    attempt: int
    worker: str
    model: int
    folded: Folded


class Stopped(NamedTuple):
    """Why a rule was stopped on one model on one worker of one attempt, for the journal."""

    view: StepView
    rule: str
    text: str


@dataclass
class _Seat:
    """A rule on one model on one worker of one attempt.

    Attributes:
        rule: Its instance; None where it stopped, or was told of the end.
        needs: Those that are still looked for.
        folding: What it found.
        last: The step that it saw last.
        fault: Why it stopped.
        not_applicable: Why it has nothing to say.
        ended: Whether it was told of the end.
    """

    rule: Rule | None
    needs: list[NeedSeen]
    folding: Folding = field(default_factory=Folding)
    last: StepView | None = None
    fault: Fault | None = None
    not_applicable: str = ""
    ended: bool = False


class RuleRunner:
    """One rule over all workers and their models. For one thread.

    Args:
        spec: The rule.
        calibration: Which set of thresholds.
        guard: Ends calls that take too long.
    """

    def __init__(self, spec: RuleSpec, calibration: str, guard: Guard) -> None:
        """Builds the rule once, so that a wrong name or parameter shows before any step.

        Raises:
            UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`build_rule`.
        """
        self._build: Callable[[], Rule] = lambda: build_rule(spec, calibration)
        self._guard = guard
        try:
            prototype = guard.call(self._build)
        except CallTimeout as error:
            raise PluginFileError(
                f"{spec.name} must be built within {guard.timeout_s:g} s but took longer, here: {error.place}"
            ) from None
        #: Name of the rule.
        self.name = prototype.name
        #: The runs that it compares with, by parameter.
        self.compares = {name: str(getattr(prototype, name) or "") for name in prototype.compares}
        #: Kinds of observations without which it has nothing to say.
        self.lives_on = tuple(k for need in prototype.needs if not need.optional for k in need.observations)
        #: Why it is not asked at all, "" where it is.
        self.not_applicable = ""
        #: What is asked right now, and of which step.
        self.asking: tuple[str, StepView] | None = None
        self._fingerprint = _fingerprint(prototype)
        self._all_needs = prototype.needs
        self._raw_bytes = MOST_RAW_BYTES if any(need.raw for need in prototype.needs) else 0
        self._needs: dict[tuple[str, int], list[NeedSeen]] = {}
        self._in_order: list[tuple[str, int]] = []
        self._tally = Tally()
        self._kept: list[Kept] = []
        self._seats: dict[SeatKey, _Seat] = {}
        self._so_far: tuple[WorkerFacts, ...] = ()
        self._errors: list[Stopped] = []
        self._timeouts: list[Observation] = []
        self._stops: dict[SeatKey, Observation] = {}

    @property
    def looks_closer(self) -> bool:
        """Whether what is fetched when somebody looks is better fetched before."""
        return self._fingerprint in _looking_closer

    def check(self, view: StepView, others: Mapping[str, StepView | None] | None = None) -> list[Finding]:
        """Shows the rule one step of one model on one worker; returns what is new.

        Raises:
            StoreError, CompactedError: The store refused what the rule asked of the view. All is to be evaluated
                again: nobody knows what the rule remembers of this step.
        """
        if self.not_applicable:
            return []
        if others is not None:
            view = replace(view, others=others)
        seat = self._seats.get((view.attempt, view.worker, view.model))
        if seat is None:
            seat = self._seats[view.attempt, view.worker, view.model] = self._seated(view)
        if seat.needs:
            for need in seat.needs:
                need.look(view)
            if any(need.satisfied for need in seat.needs):
                seat.needs = [n for n in seat.needs if not n.satisfied or n.needs.max_interval is not None]
        seat.last = view
        if seat.rule is None:
            return []
        return self._found(seat, view, "check", seat.rule.check)

    def finish(self, key: SeatKey, view: StepView) -> list[Finding]:
        """Says to the rule that an attempt has ended, for one model on one worker; ``view`` is its last step, again.

        Raises:
            StoreError, CompactedError: See :meth:`check`.
        """
        seat = self._seats.get(key)
        if seat is None or seat.ended:
            return []
        new = [] if seat.rule is None else self._found(seat, view, "finish", seat.rule.finish)
        if not any(finding.severity is not Severity.INFO for _, finding in seat.folding.findings()):
            self._ask_whether_applicable(seat)
        seat.ended, seat.rule, seat.last, seat.needs = True, None, None, []
        return new

    def stop(self, seen: Observation) -> None:
        """Takes note of where it took too long in an evaluation before this one: it is not asked there again."""
        if seen.data.get("fingerprint") == self._fingerprint:
            model = seen.data.get("model", 0)
            self._stops[seen.attempt, str(seen.data.get("worker")), model if type(model) is int else 0] = seen

    def take_kept(self) -> list[Kept]:
        """Findings that are new since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def take_changed(self) -> list[Finding]:
        """Findings that were seen again since the last call."""
        return [finding for seat in self._seats.values() for finding in seat.folding.take_changed()]

    def take_errors(self) -> list[Stopped]:
        """(view, rule, traceback) for each time the rule raised since the last call."""
        errors, self._errors = self._errors, []
        return errors

    def take_timeouts(self) -> list[Observation]:
        """Where the rule took too long since the last call."""
        timeouts, self._timeouts = self._timeouts, []
        return timeouts

    def remember(self) -> None:
        """Keeps the facts as they are before the end, for :meth:`facts`."""
        self._so_far = tuple(self._facts())

    def facts(self) -> RuleFacts:
        """What the rule says so far, and at the end of those workers and attempts that have ended."""
        facts = self._facts()
        at_end = [worker for worker in facts if self._seats[worker.attempt, worker.worker, worker.model].ended]
        so_far = self._so_far or [w for w in facts if not self._seats[w.attempt, w.worker, w.model].ended]
        return RuleFacts(self.name, tuple(in_order(so_far)), tuple(in_order(at_end)), self._met(), self.not_applicable)

    def status(self, *, ended: bool) -> RuleStatus:
        """Where the rule stands; ``ended`` says whether the training has."""
        if self.not_applicable:
            return RuleStatus(self.name, Status.NOT_APPLICABLE, self.not_applicable)
        return self._tally.status(self.name, self._over_all(), ended=ended, silent=lambda: silence(self._facts()))

    def timed_out(self, when: str, view: StepView, place: str) -> Observation:
        """What is written down of a call that took too long.

        Args:
            when: What was asked: ``"start"``, ``"check"``, ``"finish"`` or ``"applicable"``.
            view: The step.
            place: Where it was.
        """
        at = f"{view.mode.name} step {view.mode_step} of {view.worker}"
        data = {
            "rule": self.name, "worker": view.worker, "model": view.model, "when": when,
            "global_step": view.global_step,
            "text": f"took longer than {self._guard.timeout_s:g} s at {at}, in:\n{place}",
            "fingerprint": self._fingerprint,
        }  # fmt: skip
        return Observation("rule_timed_out", view.attempt, view.records.end.order, data)

    def _seated(self, view: StepView) -> _Seat:
        key = (view.worker, view.model)
        needs = self._needs.get(key)
        if needs is None:
            needs = self._needs[key] = [NeedSeen(need) for need in self._all_needs]
            insort(self._in_order, key, key=need_order)
        # Whether an optional one is met changes nothing.
        required = [need for need in needs if not need.needs.optional]
        still_open = [need for need in required if not need.satisfied or need.needs.max_interval is not None]
        seat = _Seat(None, still_open)
        seat.rule = self._ask(seat, view, "start", self._build)
        return seat

    def _facts(self) -> list[WorkerFacts]:
        return [
            WorkerFacts(
                attempt,
                worker,
                tuple(seat.folding.findings()),
                seat.folding.dropped,
                seat.fault,
                seat.not_applicable,
                model,
            )
            for (attempt, worker, model), seat in self._seats.items()
        ]

    def _met(self) -> dict[tuple[str, int], tuple[Met, ...]]:
        return {key: tuple(map(_met, needs)) for key, needs in {("", 0): self._unseen(), **self._needs}.items()}

    def _over_all(self) -> Iterator[Met]:
        """What becomes of each need over all workers and models, as far as anybody asks."""
        rows = [self._needs[key] for key in self._in_order] or [self._unseen()]
        for number, need in enumerate(self._all_needs):
            if not need.optional:
                yield best(_met(row[number]) for row in rows)

    def _unseen(self) -> list[NeedSeen]:
        return [NeedSeen(need) for need in self._all_needs]

    def _ask_whether_applicable(self, seat: _Seat) -> None:
        rule, view = seat.rule, seat.last
        if rule is None or view is None:
            return
        reason = self._ask(seat, view, "applicable", lambda: str(rule.applicable(view) or ""))
        seat.not_applicable = _shortened(reason or "")

    def _found(
        self, seat: _Seat, view: StepView, when: str, question: Callable[[StepView], Iterable[Finding] | None]
    ) -> list[Finding]:
        taken: list[Finding] = []
        dropped = seat.folding.dropped
        left = self._ask(seat, view, when, lambda: _take(question(view), seat.folding, taken), taken)
        seat.folding.dropped += left or 0
        if not taken:
            return []
        new = [kept for finding in taken if (kept := seat.folding.add(finding, view)) is not None]
        self._kept += [Kept(view.attempt, view.worker, view.model, kept) for kept in new]
        self._tally.find((kept.finding for kept in new), seat.folding.dropped - dropped)
        return [kept.finding for kept in new]

    def _ask(
        self, seat: _Seat, view: StepView, when: str, question: Callable[[], _T], taken: list[Finding] | None = None
    ) -> _T | None:
        """The answer of the rule, None where it fails: then it is stopped on this model on this worker of this attempt.

        What it found before it raised counts. What it found before it took too long does not: where it is stopped
        there in another evaluation, it is not asked at all.
        """
        if self._stops:
            stop = self._stops.get((view.attempt, view.worker, view.model))
            if stop is not None and (stop.data.get("when"), stop.data.get("global_step")) == (when, view.global_step):
                self._fail(seat, view, str(stop.data.get("text")))
                return None
        histograms, raw = view.records.histograms, view.records.raw
        fetched = histograms is None or histograms.loaded
        if raw is not None:
            raw.left_bytes, raw.refused = self._raw_bytes, False
        self.asking = (when, view)
        try:
            return self._guard.call(question)
        except CallTimeout as error:
            if taken is not None:
                taken.clear()
            seen = self.timed_out(when, view, error.place)
            self._timeouts.append(seen)
            self._fail(seat, view, seen.data["text"])
        except (Exception, SystemExit, GeneratorExit) as error:
            if raw is not None and raw.refused:
                raise CompactedError(f"{self.name} could not read a whole tensor: {error}") from error
            if isinstance(error, (StoreError, CompactedError)) and not fetched:
                _looking_closer.add(self._fingerprint)
                raise CompactedError(f"{self.name} could not look at all of a step: {error}") from error
            text = _shortened(traceback.format_exc(limit=-8))
            self._fail(seat, view, f"raised at {view.mode.name} step {view.mode_step} of {view.worker}:\n{text}")
            self._errors.append(Stopped(view, self.name, text))
        finally:
            self.asking = None
        return None

    def _fail(self, seat: _Seat, view: StepView, text: str) -> None:
        seat.rule, seat.needs = None, []
        seat.fault = Fault(view.records.end.order, text)
        self._tally.fail(view.attempt, view.worker, view.model, seat.fault)


def _met(need: NeedSeen) -> Met:
    return Met(need.satisfied, need.reason(), need.certain)


def _shortened(text: str) -> str:
    """The beginning and the end of a text that is longer than anybody reads."""
    half = _MOST_TEXT // 2
    return text if len(text) <= _MOST_TEXT else f"{text[:half]}\n... {len(text) - 2 * half} more ...\n{text[-half:]}"


def _take(found: Iterable[Finding] | None, folding: Folding, taken: list[Finding]) -> int:
    """Takes what a rule finds at one step, up to a limit; returns how many more are known to be there."""
    if found is None:
        return 0
    rows = iter(found)
    for finding in islice(rows, MOST_AT_ONCE):
        if not isinstance(finding, Finding):
            raise TypeError(f"check must give findings, see Rule.finding, but gave {finding!r:.100}")
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
    """A finding as whoever reads the journal gets it: of plain values that the rule cannot change any more."""
    try:
        (frame,) = scan(encode_finding(finding)).frames
        return decode_finding(bytes(frame.payload))
    except (TypeError, ValueError, AttributeError, WatchglassError) as error:
        what = f"value {finding.value!r:.60}, limit {finding.limit!r:.60}, message {finding.message!r:.60}"
        raise TypeError(f"a finding must hold plain values, see Rule.finding, but has {what}: {error}") from error


def _fingerprint(rule: Rule) -> str:
    """The same for the same code with the same parameters: one that was mended is asked again."""
    text = json.dumps([rule.name, _source(type(rule)), values(rule)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=256)
def _source(cls: type[Rule]) -> str:
    """The code of a class; to find where one ends takes as long as a thousand steps of most rules."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""
