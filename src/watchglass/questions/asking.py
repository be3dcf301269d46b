"""The questions, over all runs of a location. Nothing is written, except requests to running jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from watchglass import diagnose, view
from watchglass.config import RuleSpec, environment, suggest
from watchglass.errors import InvalidValueError, MissingFileError, UnknownNameError
from watchglass.questions.answers import (
    ActionAnswer,
    BacktestAnswer,
    CauseAnswer,
    ComparisonAnswer,
    DiagnosisAnswer,
    DifferenceAnswer,
    ExplanationAnswer,
    FindingAnswer,
    FiringAnswer,
    NamesAnswer,
    NewsAnswer,
    RuleAnswer,
    RuleDocumentAnswer,
    RulesAnswer,
    RunAnswer,
    RunsAnswer,
    SeriesAnswer,
    VerdictAnswer,
    shown_or_none,
)
from watchglass.questions.series import first_difference, last_values, read_series
from watchglass.records import Diagnosis, Finding, Mode, Role, Status, Verdict
from watchglass.run import (
    ListedRun,
    Run,
    RunSearch,
    identifier_of,
    is_judged,
    may_go_on,
    open_run,
    request_stop,
    runs_of,
    state_of,
)
from watchglass.store import open_store

#: Most runs, findings and names of an answer, and most runs of a back-test.
_RUNS, _FINDINGS, _NAMES, _BACKTESTED = 50, 20, 100, 20
#: Most seconds of one wait and of one evaluation.
MOST_WAIT_S, _EVALUATION_S = 300.0, 600.0
#: Seconds between two looks at a run in a folder.
_LOOK_S = 0.5


@dataclass(frozen=True)
class Questions:
    """What may be asked about the runs of a location. Each question opens the run again; for any number of threads.

    A run is named by its identifier in :meth:`list_runs`, or by its name there, never by a path. Questions raise
    :class:`WatchglassError` with a sentence for what cannot be answered.

    Attributes:
        location: A run, or a folder or prefix of runs.
        sleep: Waits so many seconds.
        summaries: What was read of runs for lists.
    """

    location: str
    sleep: Callable[[float], None] = time.sleep
    summaries: diagnose.Summaries = field(default_factory=diagnose.Summaries)

    # Runs

    def list_runs(self, search: str = "", limit: int = 10) -> RunsAnswer:
        """List the newest runs: identifier, state, verdict in one line, steps, last loss.

        Args:
            search: Words that the name must contain.
            limit: Most runs, 1 to 50.
        """
        listed, note = self._listed()
        found = [each for each in listed if all(word in each.name.lower() for word in search.lower().split())]
        newest = sorted(found, key=lambda each: (-each.created_ns, each.name))[: max(1, min(limit, _RUNS))]
        return RunsAnswer(self.location, note, len(found), [_listed_answer(self.summaries.of(each)) for each in newest])

    def verdict(self, run: str) -> VerdictAnswer:
        """Give the verdict on a run: diagnoses with likely causes, evidence and what to try, and the findings.

        Args:
            run: Identifier or name of a run from list_runs.
        """
        listed, opened = self._open(run)
        return _verdict_answer(listed, opened, diagnose.verdict(opened), evaluated=is_judged(opened))

    def check_run(self, run: str) -> VerdictAnswer:
        """Evaluate the default rules on the whole of a run now, in a separate process, and give the verdict.

        For runs without an evaluator (``evaluated`` is false in the verdict). Takes seconds to minutes; writes nothing.

        Args:
            run: Identifier or name of a run from list_runs.
        """
        listed, opened = self._open(run)
        whole = _asked_elsewhere("check", listed.location)
        return _checked_answer(listed, opened, whole)

    def explain_finding(self, run: str, finding: str) -> ExplanationAnswer:
        """Explain one finding: what its rule looks at, when it fires, the measured values, and the causes it suggests.

        Args:
            run: Identifier or name of a run from list_runs.
            finding: Identifier of a finding of the verdict, or its beginning.
        """
        from watchglass.rules import documentation, find_rule, load_knowledge, rule_names

        listed, opened = self._open(run)
        verdict = diagnose.verdict(opened)
        found = diagnose.find_findings(verdict, finding)
        if not found:
            raise UnknownNameError(f"no finding of {listed.name} is {finding!r}; its verdict lists them")
        name = found[0].rule  # a journal may name any file as a rule, which must not be executed
        documented = {name: documentation(find_rule(name))} if name in rule_names() else {}
        explained = diagnose.explain(found[0], verdict, load_knowledge(), documented)
        links = [link for symptom in explained.symptoms for link in symptom.links if link[1] > 0]
        return ExplanationAnswer(
            run=identifier_of(listed.name), finding=_finding_answer(found[0]),
            tensors=list(found[0].tensors[:_FINDINGS]),
            looks_at=explained.looks_at, fires_when=explained.fires_when,
            evidence=[f"{key}: {_in_short(value)}" for key, value in found[0].evidence.items()],
            suggests=list(dict.fromkeys(cause.title for cause, _ in links)), what_to_try=list(explained.what_to_try),
        )  # fmt: skip

    # Numbers

    def find_names(self, run: str, search: str = "", role: str = "") -> NamesAnswer:
        """Find names of scalars (loss, learning_rate, accuracy, those that the script saved) and of captured tensors.

        Args:
            run: Identifier or name of a run from list_runs.
            search: Words that the name must contain, such as "fc1 gradient".
            role: Only this role: weight, bias, gradient, update, output, input, loss, metric.
        """
        listed, opened = self._open(run)
        if role and role not in (roles := [each.value for each in Role]):
            raise InvalidValueError(f"role must be one of {', '.join(roles)} but got {role!r}{suggest(role, roles)}")
        words = search.lower().split()
        infos = [
            info
            for info in opened.worker().infos().values()
            if all(word in info.name.lower() for word in words) and role in ("", info.role.value)
        ]
        scalars = [info.name for info in infos if info.role in (Role.LOSS, Role.METRIC)]
        tensors = [info.name for info in infos if info.role not in (Role.LOSS, Role.METRIC)]
        return NamesAnswer(identifier_of(listed.name), len(infos), scalars[:_NAMES], tensors[:_NAMES])

    def read_series(
        self, run: str, name: str = "loss", mode: str = "train", first: int = 0, last: int | None = None,
        points: int = 40,
    ) -> SeriesAnswer:  # fmt: skip
        """Read a scalar over steps, thinned; each point has the last, lowest and highest finite value of its steps.

        Args:
            run: Identifier or name of a run from list_runs.
            name: A scalar of find_names.
            mode: "train", or "eval" for the mean of each evaluation, at the training step before it.
            first: The first step.
            last: The last step; none for the newest.
            points: Most points, 2 to 200.
        """
        return self._series(run, name, mode=mode, first=first, last=last, points=points)

    def read_tensor(
        self, run: str, name: str, statistic: str = "l2", first: int = 0, last: int | None = None, points: int = 40
    ) -> SeriesAnswer:
        """Read one statistic of a tensor over training steps, thinned.

        Args:
            run: Identifier or name of a run from list_runs.
            name: A tensor of find_names, such as "gradient/fc1.weight".
            statistic: mean, std, min, max, l2, rms, abs_mean, zero_ratio, nonfinite and so on.
            first: The first step.
            last: The last step; none for the newest.
            points: Most points, 2 to 200.
        """
        return self._series(run, name, statistic=statistic, first=first, last=last, points=points)

    def _series(self, run: str, name: str, **asked: Any) -> SeriesAnswer:
        listed, opened = self._open(run)
        found = read_series(opened, name, listed_by="find_names lists them", **asked)
        return replace(found, run=identifier_of(listed.name))

    def compare_runs(self, run: str, other: str) -> ComparisonAnswer:
        """Compare two runs: verdicts, settings that differ, last values, and the first step at which numbers differ.

        Args:
            run: Identifier or name of a run from list_runs.
            other: Another one.
        """
        (listed, opened), (second, another) = self._open(run), self._open(other)
        mine, others = view.settings_of(opened), view.settings_of(another)
        settings = [
            DifferenceAnswer(name, mine.get(name, ""), others.get(name, "")) for name in view.differing([mine, others])
        ]
        values, theirs = last_values(opened), last_values(another)
        last = [DifferenceAnswer(name, values[name], theirs[name]) for name in values if name in theirs]
        step, what = first_difference(opened, another)
        return ComparisonAnswer(
            identifier_of(listed.name), identifier_of(second.name),
            [view.headline(diagnose.verdict(each)) for each in (opened, another)], settings, last[:_NAMES], step, what,
        )  # fmt: skip

    # Rules

    def list_rules(self, search: str = "") -> RulesAnswer:
        """List the built-in rules, each with one sentence.

        Args:
            search: Words that name or sentence must contain.
        """
        from watchglass.rules import documentation, find_rule, rule_names

        found = [RuleAnswer(name, documentation(find_rule(name)).summary) for name in rule_names()]
        words = search.lower().split()
        return RulesAnswer(
            [each for each in found if all(word in f"{each.rule} {each.summary}".lower() for word in words)]
        )

    def rule(self, name: str) -> RuleDocumentAnswer:
        """Document one rule: what it looks at, when it fires, usual causes, what to try, parameters.

        Args:
            name: Name of a built-in rule.
        """
        from watchglass.rules import documentation, find_rule

        found = documentation(find_rule(_built_in(name)))
        sections = found.sections
        parameters = [
            f"{each.name}: {each.type}, default {each.default}{f', {each.limits}' if each.limits else ''}: {each.help}"
            for each in found.parameters
        ]
        return RuleDocumentAnswer(
            found.name, found.summary, sections.get("Looks at", ""), sections.get("Fires when", ""),
            sections.get("Usual causes", ""), sections.get("What to try", ""), parameters,
        )  # fmt: skip

    def backtest_rule(self, rule: str, runs: list[str], parameters: dict[str, str] | None = None) -> BacktestAnswer:
        """Evaluate a rule with other parameters on stored runs, in a separate process: where it would have fired.

        Args:
            rule: Name of a built-in rule.
            runs: Identifiers or names of at most 20 runs from list_runs.
            parameters: Values by name of parameter, as texts.
        """
        if not 1 <= len(runs) <= _BACKTESTED:
            raise InvalidValueError(f"runs must be 1 to {_BACKTESTED} but got {len(runs)}")
        from watchglass.rules import build_rule

        listed = {each.location: each for each in map(self._find, runs)}
        for name, value in (parameters or {}).items():
            if "," in value or not value.isprintable():
                raise InvalidValueError(f"{name} must be a value without commas but got {value!r:.100}")
        build_rule(RuleSpec(_built_in(rule), dict(parameters or {})), "default")  # refuses other names and values
        given = [f"{name}={value}" for name, value in (parameters or {}).items()]
        text = ",".join([f"{_built_in(rule)}:{given[0]}", *given[1:]]) if given else _built_in(rule)
        whole = _asked_elsewhere("backtest", text, *listed)
        answers = [
            FiringAnswer(
                identifier_of(listed[each["run"]].name), listed[each["run"]].name, each["status"], each["first_step"],
                each["last_step"], each["count"], each["severity"] or "",
            )
            for each in whole["combinations"][0]["runs"]
        ]  # fmt: skip
        return BacktestAnswer(rule, given, answers)

    def wait_for_finding(self, run: str, known: list[str] | None = None, timeout_s: float = 60.0) -> NewsAnswer:
        """Wait until a run has a finding that is not known yet, or ends, or the time is over.

        Args:
            run: Identifier or name of a run from list_runs.
            known: Identifiers of findings that are known; none for those that the run has now.
            timeout_s: Longest time to wait in seconds, at most 300.
        """
        listed, opened = self._open(run)
        seen = set(self.known_findings(run) if known is None else known)
        until_s = time.monotonic() + min(max(timeout_s, 0.0), MOST_WAIT_S)
        look_s = max(_LOOK_S, opened.store.policy.intervals(len(opened.workers)).poll_s)
        while True:
            new = [each for each in opened.journal.findings if each.id not in seen]
            state = state_of(opened)
            ended = not may_go_on(state) and (is_judged(opened) or not _being_judged(opened))
            left_s = until_s - time.monotonic()
            if new or ended or left_s <= 0:
                steps = diagnose.verdict(opened).train_steps
                found = [_finding_answer(each) for each in _worst(new)]
                return NewsAnswer(identifier_of(listed.name), state, steps, found, ended)
            self.sleep(min(look_s, left_s))
            opened.refresh()

    def known_findings(self, run: str) -> list[str]:
        """The identifiers of the findings that a run has now."""
        return [each.id for each in self._open(run)[1].journal.findings]

    # Actions

    def stop_run(self, run: str, reason: str) -> ActionAnswer:
        """Stop a running job at a step that all its workers share.

        Args:
            run: Identifier or name of a run from list_runs.
            reason: One sentence for people, which the run keeps.
        """
        listed, opened = self._open(run)
        step = request_stop(opened, reason)
        return ActionAnswer(identifier_of(listed.name), f"stop at training step {step} or the next possible one")

    def profile_steps(self, run: str, steps: int = 5) -> ActionAnswer:
        """Profile the operators of the next training steps of a running job; its report will have them.

        Args:
            run: Identifier or name of a run from list_runs.
            steps: How many, 1 to 50.
        """
        listed, opened = self._open(run)
        request = opened.profile(steps)
        asked = f"profile training steps {request.steps.start} to {request.steps.stop - 1} or the next possible ones"
        return ActionAnswer(identifier_of(listed.name), asked)

    def _listed(self) -> tuple[list[ListedRun], str]:
        """The runs, and why there are none: an assistant may ask before the first one."""
        try:
            return runs_of(self.location, RunSearch(open_store(self.location))).listed, ""
        except MissingFileError as error:
            return [], str(error)

    def _find(self, name: str) -> ListedRun:
        listed, note = self._listed()
        if note:
            raise UnknownNameError(f"there is no run {name!r:.100}: {note}")
        for each in listed:
            if name in (identifier_of(each.name), each.name):
                return each
        known = [each.name for each in listed]
        raise UnknownNameError(f"there is no run {name!r:.100}{suggest(name, known)}; list_runs lists them")

    def _open(self, name: str) -> tuple[ListedRun, Run]:
        listed = self._find(name)
        return listed, open_run(listed.location)


def _listed_answer(run: diagnose.RunSummary) -> RunAnswer:
    started = datetime.fromtimestamp(run.listed.created_ns / 1e9, timezone.utc).isoformat(timespec="seconds")
    return RunAnswer(
        run.identifier, run.listed.name, "unreadable" if run.problem else run.state, run.headline, run.train_steps,
        run.planned_train_steps, shown_or_none(run.loss), started, run.problem,
    )  # fmt: skip


def _verdict_answer(listed: ListedRun, run: Run, verdict: Verdict, *, evaluated: bool) -> VerdictAnswer:
    silent = (Status.NOT_APPLICABLE, Status.STARVED, Status.ERROR)
    return VerdictAnswer(
        run=identifier_of(listed.name), name=listed.name, state=state_of(run), status=verdict.status,
        headline=view.headline(verdict), evaluated=evaluated, train_steps=verdict.train_steps,
        last_step=run.worker().numbers(Mode.TRAIN).last,
        diagnoses=[_diagnosis_answer(each) for each in verdict.diagnoses],
        findings=[_finding_answer(each) for each in _worst(verdict.findings)], findings_total=len(verdict.findings),
        rules_without_answer=sum(each.status in silent for each in verdict.statuses),
        failure=view.failure_sentence(verdict.failure) if verdict.failure is not None else "",
        stop_reason=verdict.stop_reason,
    )  # fmt: skip


def _diagnosis_answer(diagnosis: Diagnosis) -> DiagnosisAnswer:
    causes = [
        CauseAnswer(
            each.cause.title, round(each.score, 3), each.step, each.cause.explanation, list(each.evidence),
            list(each.against),
        )
        for each in diagnosis.causes[:3]
    ]  # fmt: skip
    return DiagnosisAnswer(
        diagnosis.headline, diagnosis.severity.value, diagnosis.step, causes, list(diagnosis.what_to_try),
        list(diagnosis.findings),
    )  # fmt: skip


def _checked_answer(listed: ListedRun, run: Run, whole: dict[str, Any]) -> VerdictAnswer:
    """The verdict that ``watchglass check --format json`` gave."""
    diagnoses = [
        DiagnosisAnswer(
            each["headline"], each["severity"], each["step"],
            [
                CauseAnswer(
                    cause["title"], round(cause["score"], 3), cause["step"], cause["explanation"], cause["evidence"],
                    cause["against"],
                )
                for cause in each["causes"][:3]
            ],
            each["try"], each["findings"],
        )
        for each in whole["diagnoses"]
    ]  # fmt: skip
    findings = [
        FindingAnswer(
            each["id"], each["rule"], each["severity"], each["mode"], each["step"], each["last_step"], each["worker"],
            each["message"], each["value"], each["limit"],
        )
        for each in sorted(whole["findings"], key=lambda each: ("error", "warning", "info").index(each["severity"]))
    ]  # fmt: skip
    silent = ("NotApplicable", "Starved", "Error")
    return VerdictAnswer(
        run=identifier_of(listed.name), name=listed.name, state=state_of(run), status=whole["status"],
        headline=whole["headline"], evaluated=True, train_steps=whole["train_steps"],
        last_step=run.worker().numbers(Mode.TRAIN).last, diagnoses=diagnoses, findings=findings[:_FINDINGS],
        findings_total=len(findings), rules_without_answer=sum(each["status"] in silent for each in whole["rules"]),
        failure=(whole["failure"] or {}).get("sentence", ""), stop_reason=whole["stop_reason"] or "",
    )  # fmt: skip


def _finding_answer(finding: Finding) -> FindingAnswer:
    return FindingAnswer(
        finding.id, finding.rule, finding.severity.value, finding.mode.name, finding.step, finding.last_step,
        finding.worker, finding.message, shown_or_none(finding.value), shown_or_none(finding.limit),
    )  # fmt: skip


def _worst(findings: Iterable[Finding]) -> Sequence[Finding]:
    return sorted(findings, key=lambda each: (-each.severity.rank, each.step))[:_FINDINGS]


def _being_judged(run: Run) -> bool:
    return any(each.status is Status.IN_PROGRESS for each in run.journal.statuses)


def _built_in(name: str) -> str:
    """The name of a built-in rule: a program may not name a file, which would be executed."""
    from watchglass.rules import rule_names

    names = list(rule_names())
    if name not in names:
        raise UnknownNameError(f"there is no built-in rule {name!r:.100}{suggest(name, names)}; list_rules lists them")
    return name


def _in_short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _asked_elsewhere(verb: str, *words: str) -> dict[str, Any]:
    """The JSON that a command prints in a separate process: rules may take long, and need signals of a main thread."""
    command = [sys.executable, "-m", "watchglass", verb, "--format", "json", "--", *words]
    try:
        done = subprocess.run(
            command, env=environment.for_companion(os.environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_EVALUATION_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InvalidValueError(
            f"it took longer than {_EVALUATION_S:.0f} s; evaluate it by: watchglass {verb}"
        ) from None
    try:
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found
    except (ValueError, AssertionError):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise MissingFileError(view.printable(said[-1] if said else f"exit status {done.returncode}")) from None
