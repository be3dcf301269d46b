"""The sentences of a verdict: its headline, its closing lines, runs without an answer, chains of symptoms.

Every format uses them: the terminal, Markdown, JSON, JUnit, SARIF and the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from watchglass.records import (
    CURE,
    Diagnosis,
    Finding,
    ModelSummary,
    RankedCause,
    RuleStatus,
    Severity,
    Status,
    Verdict,
    count,
    facts,
)
from watchglass.view.capture_cost import capture_lines, fault_line, memory_growth, notable_wait
from watchglass.view.failure import failure_sentence
from watchglass.view.models import model_lines, models_named
from watchglass.view.text import command, duration, money, number, percent, printable

#: Below this number of steps the time of the remaining ones is only a rough estimate.
_FEW_STEPS = 20
#: Share of waits from which on a run without findings is not simply called healthy.
_MOSTLY = 0.5
#: Rules that a line names.
_NAMED = 4
#: Rules of symptoms that a line names, and steps of each.
_SYMPTOMS, _STEPS_OF_RULE = 8, 3
_SILENCE = {Status.STARVED: "could not be evaluated", Status.ERROR: "failed"}


def advice(finding: Finding, verdict: Verdict) -> tuple[str, ...]:
    """What to try: the advice of the finding's diagnosis, with numbers where they are known, else of the finding."""
    own = (diagnosis.what_to_try for diagnosis in verdict.diagnoses if finding.id in diagnosis.findings)
    return next(own, finding.what_to_try)


def amounts(findings: Sequence[Finding]) -> list[str]:
    """``["1 error", "2 warnings"]``."""
    counts = Counter(finding.severity for finding in findings)
    return [
        count(counts[severity], severity.value, "info" if severity is Severity.INFO else "")
        for severity in (Severity.ERROR, Severity.WARNING, Severity.INFO)
        if counts[severity]
    ]


def headline(verdict: Verdict) -> str:
    """The verdict in one line."""
    words = amounts(verdict.findings)
    so_far = "" if words else "; no findings so far" if verdict.statuses else "; no rule was evaluated yet"
    notes = {
        "incomplete": f"the run has not ended{so_far}",
        "damaged": "records are missing; no findings in the rest",
        "unreadable": "it cannot be read",
        "no data": verdict.unjudged or "no training step was recorded",
        "not judged": verdict.unjudged,
    }
    earlier = sum(finding.attempt < verdict.attempt for finding in verdict.findings)
    if earlier:
        words[-1] += f" ({'all' if earlier == len(verdict.findings) else earlier} of them in earlier attempts)"
    failed = sum(status.status is Status.ERROR for status in verdict.statuses)
    words += [f"{count(failed, 'rule')} failed"] if failed else []
    begin = verdict.status
    if limits := reservations(verdict):
        begin = f"{'; '.join(limits.values())}; otherwise {begin}"
    if verdict.failure is not None:
        how = "interrupted" if verdict.failure.kind == "interrupt" else "failed"
        begin = f"{how} {_after(verdict)}"
        notes[verdict.status] = failure_sentence(verdict.failure).removeprefix("interrupted by ")
    parts = [note for note in (notes.get(verdict.status), ", ".join(words)) if note]
    return begin + (f": {'; '.join(parts)}" if parts else "")


def reservations(verdict: Verdict) -> dict[str, str]:
    """Why a run without findings is not simply healthy, by the counter that says so.

    It mostly waits, its memory ends, or watchglass failed.

    Empty for other runs.
    """
    if verdict.status != "no issues found":
        return {}
    waits, growth = notable_wait(verdict.capture), memory_growth(verdict.capture)
    mostly = waits is not None and waits >= _MOSTLY
    found = {
        "phases": f"{percent(waits)} of a typical training step is a wait for data" if waits and mostly else None,
        "memory": growth,
        "fault": fault_line(verdict.capture),
    }
    return {name: text for name, text in found.items() if text is not None}


def _after(verdict: Verdict) -> str:
    return f"after {count(verdict.train_steps, 'training step')}" if verdict.train_steps else "before its first step"


def silent_rules(verdict: Verdict) -> dict[str, list[str]]:
    """The rules without an answer, by what became of them: ``{"1 rule failed": ["Mine failed: division by zero"]}``.

    Empty for runs without data, of which rules would only repeat that there was none.
    """
    found = {}
    for status, words in _SILENCE.items() if _has_data(verdict) else ():
        rules = [each for each in verdict.statuses if each.status is status]
        if rules:
            found[f"{count(len(rules), 'rule')} {words}"] = [
                f"{printable(each.rule)} {words}: {printable(each.reason) or 'no reason given'}" for each in rules
            ]
    return found


def _has_data(verdict: Verdict) -> bool:
    return verdict.status != "unreadable" and verdict.train_steps > 0


def metrics_in_words(verdict: Verdict) -> str:
    """``"validation accuracy 0.9812, training loss 0.05"``."""
    return ", ".join(f"{printable(name)} {number(value)}" for name, value in verdict.metrics.items())


def growing(verdict: Verdict) -> Iterator[str]:
    """What limits a verdict beside its rules, as far as the headline does not state it."""
    stated = reservations(verdict)
    return capture_lines({k: v for k, v in verdict.capture.items() if k not in stated}, brief=True)


def symptoms_in_words(findings: Sequence[Finding], above: str) -> str:
    """Findings in the order given, by rule, in one line: ``"LossIncreasing at step 4, DeadRelu at steps 9, 12"``.

    Those whose messages ``above`` states already are left out.
    """
    steps: dict[str, list[int]] = {}
    for finding in findings:
        if not _stated(finding.message, above):
            steps.setdefault(printable(finding.rule), []).append(finding.step)
    named = [f"{rule} at {_at(own)}" for rule, own in steps.items()]
    return "; ".join(named[:_SYMPTOMS]) + _more(len(named) - _SYMPTOMS)


def _at(steps: Sequence[int]) -> str:
    """``"step 4"``, ``"steps 9, 12"``, the first and how many more of many."""
    known = sorted(set(steps))
    if len(known) == 1:
        return f"step {known[0]}"
    shown = ", ".join(map(str, known[:_STEPS_OF_RULE]))
    more = len(known) - _STEPS_OF_RULE
    return f"steps {shown}" + (f" and {more} more" if more > 0 else "")


def stated_by(findings: Sequence[Finding], above: str) -> str:
    """``" (ExplodingTensor)"``: the rules whose messages ``above`` states; "" for none."""
    rules = dict.fromkeys(printable(each.rule) for each in findings if _stated(each.message, f": {above}"))
    return f" ({', '.join(rules)})" if rules else ""


def _stated(message: str, above: str) -> bool:
    """Whether a headline, which is a title and messages ("title: message; message"), states a message."""
    return any(f"{before}{message}; " in f"{above}; " for before in (": ", "; "))


def closing(
    verdict: Verdict,
    options: Sequence[str] = (),
    *,
    brief: bool = False,
    reasons: bool = True,
    sentence: bool = False,
) -> Iterator[str]:
    """The lines below the diagnoses: metrics, length, rules that could not be evaluated, cost.

    Args:
        verdict: The verdict.
        options: Options with which ``check`` evaluates the same rules, ``["--rules", "llm"]``.
        brief: Only what a reader of a terminal has to know: results, what limits the verdict, records that are missing.
        reasons: Whether to include the lines of :func:`silent_rules`.
        sentence: Whether a sentence above states length, metrics and :func:`growing`.
    """
    yield from _ended_early(verdict)
    if verdict.stop_reason:
        yield f"the reason given for the stop: {printable(verdict.stop_reason)}"
    yield from model_lines(verdict, brief=brief)
    metrics = metrics_in_words(verdict)
    if metrics and not brief:
        yield metrics
    if verdict.problems:
        yield f"not readable: {printable(verdict.problems[0])}" + _more(len(verdict.problems) - 1)
    if not _has_data(verdict):
        return
    if verdict.unjudged and verdict.status != "not judged":
        yield f"little could be evaluated: {printable(verdict.unjudged)}"
    if not sentence:
        yield length(verdict, brief=brief) + (f"; {metrics}" if metrics and brief else "")
    for past in verdict.bypassed:
        yield _bypassed(past, verdict)
    silent = [status for status in verdict.statuses if status.status in (Status.STARVED, Status.ERROR)]
    if brief:
        yield from _in_a_line(silent, command("check", "-v", verdict.run, *options))
        yield from () if sentence else growing(verdict)
        return
    for lines in silent_rules(verdict).values() if reasons else ():
        yield from lines
    curable: dict[str, list[str]] = {}
    for status in verdict.statuses:
        if status.status is Status.NOT_APPLICABLE and CURE in status.reason:
            curable.setdefault(status.reason, []).append(status.rule)
    for reason, rules in curable.items():
        yield f"{printable(', '.join(rules))} not applicable: {printable(reason)}"
    spoke = len(verdict.statuses) - len(silent)
    if spoke:
        unfit = sum(status.status is Status.NOT_APPLICABLE for status in verdict.statuses)
        yield f"{count(spoke, 'rule')} evaluated" + (f", {unfit} of them not applicable here" if unfit else "")
    yield from capture_lines(verdict.capture)


def _in_a_line(silent: Sequence[RuleStatus], why: str) -> Iterator[str]:
    """``"2 rules could not be evaluated (DeadRelu, Mine); why: watchglass check -v runs/a"``."""
    for status, words in _SILENCE.items():
        rules = [printable(each.rule) for each in silent if each.status is status]
        if rules:
            named = ", ".join(rules[:_NAMED]) + _more(len(rules) - _NAMED).removeprefix(",")
            yield f"{count(len(rules), 'rule')} {words} ({named}); why: {why}"


def _ended_early(verdict: Verdict) -> Iterator[str]:
    """The workers that ended before their script, grouped by how they ended."""
    groups: dict[str, list[str]] = {}
    for failure in verdict.ended_early:
        lost = failure.kind == "lost"
        how = "like a terminated process" if lost else failure_sentence(failure)
        groups.setdefault(how, []).append(failure.worker)
    for how, workers in groups.items():
        yield f"{workers_named(workers)} ended early, {how}; the script itself ended with exit status 0"


def _bypassed(past: facts.BypassedUpdates, verdict: Verdict) -> str:
    """``"19 training steps from step 21 on bypassed PyTorch's hooks ..."``."""
    many = f"{count(past.steps, 'training step')} from" if past.steps is not None else "training steps from"
    whose = f" of {printable(str(past.worker))}" if len({each.worker for each in verdict.bypassed}) > 1 else ""
    return (
        f"{many} step {past.since} on{whose} bypassed PyTorch's hooks ({printable(past.reason)}); recorded from the "
        "changed weights, without the learning rate"
    )


def place_in_words(diagnosis: Diagnosis, verdict: Verdict) -> str:
    """The first place of a diagnosis; a module whose name is a number, as in ``nn.Sequential``, also by its class.

    ``"module 5 (Linear)"``, ``"net.5 (Linear)"``; a class is stated as far as a finding has it.
    """
    module = diagnosis.subject
    if not module.rpartition(".")[2].isdigit():
        return module
    types = {each.evidence.get("module"): each.evidence.get("module_type") for each in findings_of(diagnosis, verdict)}
    words = module if "." in module else f"module {module}"
    return f"{words} ({kind})" if (kind := types.get(module)) else words


def _more(amount: int) -> str:
    return f", and {amount:,} more" if amount > 0 else ""


def length(verdict: Verdict, *, brief: bool = False) -> str:
    """Steps and time of the run, and the steps, time and cost that a stop saved; ``brief`` as for :func:`examined`."""
    text = count(verdict.train_steps, "training step")
    planned = verdict.planned_train_steps
    if planned is not None and planned > verdict.train_steps:
        text = f"{verdict.train_steps:,} of {count(planned, 'training step')}"
    text += f" in {duration(verdict.seconds)}{examined(verdict, brief=brief)}"
    return f"stopped after {text}: {saved(verdict)}" if verdict.status == "stopped" else text


def examined(verdict: Verdict, *, brief: bool = False) -> str:
    """``" (tensors examined at steps 0 to 31 and 22 more)"``, if ``brief`` ``" (54 examined)"``; "" if unknown."""
    seen = verdict.examined
    if seen is None:
        return ""
    if brief:
        return f" ({seen.steps:,} examined)" if seen.steps else " (no tensors examined)"
    if seen.steps == verdict.train_steps:
        where = "all of them"
    elif len(verdict.models) > 1 or seen.end <= seen.first:
        where = f"{seen.steps:,} of them"
    else:
        last, more = seen.end - 1, seen.steps - (seen.end - seen.first)
        where = f"step {last:,}" if last == seen.first else f"steps {seen.first:,} to {last:,}"
        where += f" and {more:,} more" if more else ""
    return f" (tensors examined at {where})" if seen.steps else " (no tensors examined)"


def saved(verdict: Verdict) -> str:
    """The savings of a stop: steps, time, and cost if there is a price."""
    if verdict.steps_saved is None or verdict.seconds_saved is None:
        return "savings unknown: pass --planned-steps N"
    if not verdict.steps_saved:
        return "nothing saved: all planned steps had run"
    cost = ""
    if verdict.cost_saved is not None and verdict.price_per_hour is not None:
        cost = f" and {money(verdict.cost_saved)}"
    few = verdict.train_steps < _FEW_STEPS
    about = f"{'very roughly' if few else 'about'} {duration(verdict.seconds_saved)}{cost} saved"
    text = f"{count(verdict.steps_saved, 'step')} not run, {about}"
    if few:
        text += f", estimated from {count(verdict.train_steps, 'step')}"
    return text + (f" (at {money(verdict.price_per_hour)} per hour)" if cost and verdict.price_per_hour else "")


def cause_in_words(ranked: RankedCause) -> str:
    """A cause with its probability and the first step of its evidence."""
    return f"{printable(ranked.cause.title)} ({percent(ranked.score)}, from step {ranked.step} on)"


def findings_of(diagnosis: Diagnosis, verdict: Verdict) -> list[Finding]:
    """The findings that a diagnosis explains, earliest first."""
    known = {finding.id: finding for finding in verdict.findings}
    return [known[name] for name in diagnosis.findings if name in known]


def since(diagnosis: Diagnosis, verdict: Verdict) -> str:
    """``"step 37"``, with mode, workers and attempt if they differ from the default ones."""
    first = next(iter(findings_of(diagnosis, verdict)), None)
    text = f"step {diagnosis.step}"
    trained = first is None or first.mode.name == "TRAIN"
    text += "" if first is None or trained else f" of {first.mode.name}"
    workers = diagnosis.workers or ((first.worker,) if first is not None else ())
    text += f" on {workers_named(workers)}" if workers not in ((), ("worker_0",)) else ""
    text += _in_models(diagnosis, verdict.models if trained else ())
    return text + (f", in attempt {first.attempt}" if first is not None and first.attempt < verdict.attempt else "")


def saved_before(diagnosis: Diagnosis) -> str:
    """``"weights were last saved after step 400: run/model.pt"``; "" if the script saved none before it."""
    saved = diagnosis.checkpoint
    if saved is None:
        return ""
    return f"weights were last saved after step {saved.step}" + (f": {printable(saved.file)}" if saved.file else "")


def _in_models(diagnosis: Diagnosis, models: Iterable[ModelSummary]) -> str:
    """``", the first of model_2"``, ``", in model_2 (trained since step 225)"``; "" for the first model.

    All models of a worker share the numbers of its steps, so step 225 may be the first of the second model.
    """
    if diagnosis.models in ((), (0,)):
        return ""
    named = models_named(diagnosis.models)
    first = {each.first_step for each in models if each.model in diagnosis.models}
    if len(diagnosis.models) > 1 or len(first) != 1 or None in first:
        return f", in {named}"
    (begin,) = first
    return f", the first of {named}" if begin == diagnosis.step else f", in {named} (trained since step {begin})"


def workers_named(workers: Sequence[str]) -> str:
    """``"worker_1"``, ``"worker_0 and worker_2"``, ``"8 workers (worker_0 to worker_7)"``."""
    named = [printable(worker) or "all workers" for worker in workers]
    if len(named) <= 3:
        return " and ".join(filter(None, (", ".join(named[:-1]), *named[-1:])))
    numbers = [worker.rpartition("_")[2] for worker in workers]
    whole = all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers)
    in_a_row = whole and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    listed = f"{named[0]} to {named[-1]}" if in_a_row else f"{', '.join(named[:3])} and {len(named) - 3} more"
    return f"{len(named):,} workers ({listed})"


def chain(findings: Sequence[Finding]) -> list[str]:
    """The symptoms in the order given: step, rule, message. Equal symptoms of several workers or models are one."""
    groups = {id(group[0]): group for group in alike(findings)}
    of_models = over_models(group[0] for group in groups.values())
    return [chain_link(groups[id(first)], others) for first, *others in of_models]


def alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings in the order given; equal findings of several workers are one group."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        key = (
            finding.attempt, finding.model, finding.mode, finding.step, finding.rule, finding.severity,
            finding.tensors[:1],
        )  # fmt: skip
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def over_models(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings in the order given; what a rule found in several models, such as each fold, is one group.

    What only states the numbers of a model, an ``info``, is a group for each.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        subject = finding.evidence.get("subject")
        single = finding.model is None or subject is None or finding.severity is Severity.INFO
        about = len(groups) if single else str(subject)
        groups.setdefault((finding.attempt, finding.rule, finding.severity, finding.worker, about), []).append(finding)
    return list(groups.values())


def also_in(others: Sequence[Finding]) -> str:
    """``"also in model_2 and model_3"``, from the further findings of a group of :func:`over_models`; "" for none."""
    named = sorted({finding.model for finding in others if finding.model is not None})
    return f"also in {models_named(named)}" if named else ""


def chain_link(findings: Sequence[Finding], others: Sequence[Finding] = ()) -> str:
    """One symptom: ``"step 4: ExplodingTensor: the loss became NaN (on worker_1)"``; the first worker is not named.

    ``others`` are the findings of the same in further models.
    """
    first = findings[0]
    workers = {finding.worker for finding in findings}
    notes = [
        f"{first.count} times until step {first.last_step}" if first.count > 1 else "",
        f"on {len(workers)} workers" if len(workers) > 1 else "",
        *(f"on {printable(worker)}" for worker in workers - {"", "worker_0"} if len(workers) == 1),
        f"{also_in(others)}, from step {min(each.step for each in others)} on" if others else "",
    ]
    note = "; ".join(filter(None, notes))
    message = printable(first.message)
    text = f"step {first.step}: {printable(first.rule)}: {message}"
    return text + (f" ({note})" if note else "")
