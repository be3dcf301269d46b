"""The verdict of a run for the terminal: as plain text or in a coloured frame, both from one outline of rows.

Other formats (Markdown, JSON, the report) use its sentences: :func:`headline`, :func:`closing`, :func:`chain`.
"""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watchglass.records import BypassedUpdates, Diagnosis, Finding, RankedCause, Severity, Status, Verdict, count
from watchglass.view.capture_cost import capture_lines
from watchglass.view.conclusion import Terms, outcome
from watchglass.view.failure import failure_lines, failure_sentence
from watchglass.view.models import model_lines, models_named
from watchglass.view.text import duration, money, number, percent, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Colours of rich by severity; "" stands for no finding.
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "": "bold green"}

#: Most diagnoses in full, and most diagnoses: those between have a headline only.
_IN_FULL, _DIAGNOSES = 3, 20
#: Most symptoms of a chain, and most sentences of advice.
_CHAIN, _ADVICE = 5, 3
#: Below this number of steps the time of the remaining ones is only a rough estimate.
_FEW_STEPS = 20
#: Most sentences against a cause.
_AGAINST = 1


@dataclass(frozen=True)
class TextRow:
    """A line of the outline.

    Attributes:
        text: The text.
        label: The label before it; "" for a row that continues the previous one; None for text over the whole width.
        style: A style of rich.
        hang: Indent of further lines of text over the whole width, in characters: the width of a number or an id.
    """

    text: str
    label: str | None = None
    style: str = ""
    hang: int = 0


def verdict_text(verdict: Verdict, *, width: int = 100, options: Sequence[str] = ()) -> str:
    """The verdict as plain text, wrapped at ``width``; ``options`` as for :func:`outline`."""
    return rows_text(outline(verdict, options), width=width)


def rows_text(rows: Sequence[TextRow], *, width: int = 100) -> str:
    """An outline as plain text, wrapped at ``width``."""
    lines: list[str] = []
    for row in rows:
        indent = "" if row.label is None else f"   {row.label:<8} "
        lines += textwrap.wrap(
            row.text,
            width,
            initial_indent=indent,
            subsequent_indent=" " * (len(indent) or row.hang),
            break_long_words=False,
            break_on_hyphens=False,  # paths and options have some
        ) or [""]
    return "\n".join(lines) + "\n"


def rows_panel(rows: Sequence[TextRow], run: str, style: str) -> RenderableType:
    """An outline for a rich console, in a frame that names the run."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    grid: Table | None = None
    for row in rows:
        if row.label is None:
            grid = None
            parts.append(_hanging(row) if row.hang else Text(row.text, style=row.style))
            continue
        if grid is None:
            grid = Table.grid(padding=(0, 1))
            grid.add_column(style="dim", min_width=8, no_wrap=True)
            grid.add_column(overflow="fold")
            parts.append(Padding(grid, (0, 0, 0, 3)))
        grid.add_row(row.label, Text(row.text, style=row.style))
    title = Text(f"watchglass · {printable(run)}", style="bold")
    return Panel(Group(*parts), title=title, title_align="left", border_style=style, padding=(0, 1))


def _hanging(row: TextRow) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(row.text[: row.hang], style=row.style), Text(row.text[row.hang :], style=row.style))
    return grid


def tone(verdict: Verdict) -> str:
    """``"error"`` for a failed run, else the highest severity; "warning" without an answer, "" for a clean run."""
    if verdict.status == "failed":
        return Severity.ERROR.value
    if verdict.findings:
        return max(verdict.findings, key=lambda finding: finding.severity.rank).severity.value
    return "warning" if outcome(verdict, Terms()) == "no answer" else ""


def outline(verdict: Verdict, options: Sequence[str] = ()) -> list[TextRow]:
    """The whole verdict, in order.

    Args:
        verdict: The verdict.
        options: Options with which ``explain`` explains this verdict, ``["--rules", "llm"]``; none for the verdict
            of the evaluator of the run.
    """
    rows = heading(verdict)
    for position, diagnosis in enumerate(verdict.diagnoses[:_DIAGNOSES], 1):
        rows.append(TextRow(""))
        rows.append(diagnosis_row(position, diagnosis))
        if position <= _IN_FULL:
            rows += _in_full(diagnosis, verdict)
    if len(verdict.diagnoses) > _DIAGNOSES:
        left = count(len(verdict.diagnoses) - _DIAGNOSES, "further diagnosis", "further diagnoses")
        rows += [TextRow(""), TextRow(f"and {left}")]
    rows += unexplained(verdict)
    below = [TextRow(text) for text in closing(verdict)]
    rows += [TextRow(""), *below] if below else []
    if verdict.diagnoses:
        command = shlex.join(printable(word) for word in ("watchglass", "explain", verdict.run, *options))
        rows.append(TextRow(f"each cause with its evidence: {command}"))
    return rows


def heading(verdict: Verdict) -> list[TextRow]:
    """The verdict in one line, and for a failed run the line of the script that failed."""
    lines = failure_lines(verdict.failure) if verdict.failure is not None else []
    return [TextRow(headline(verdict), style=STYLES[tone(verdict)]), *(TextRow(text, label) for label, text in lines)]


def diagnosis_row(position: int, diagnosis: Diagnosis) -> TextRow:
    """A diagnosis in a sentence, with its number."""
    number = f"{position}. "
    return TextRow(number + printable(diagnosis.headline), style=STYLES[diagnosis.severity.value], hang=len(number))


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
    notes = {
        "incomplete": "the run has not ended",
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
    if verdict.failure is not None:
        begin = f"failed {_after(verdict)}"
        notes["failed"] = failure_sentence(verdict.failure)
    parts = [note for note in (notes.get(verdict.status), ", ".join(words)) if note]
    return begin + (f": {'; '.join(parts)}" if parts else "")


def _after(verdict: Verdict) -> str:
    return f"after {count(verdict.train_steps, 'training step')}" if verdict.train_steps else "before its first step"


def closing(verdict: Verdict) -> Iterator[str]:
    """The lines below the diagnoses: metrics, length, rules that could not be evaluated, cost."""
    yield from _ended_early(verdict)
    yield from model_lines(verdict)
    if verdict.metrics:
        yield ", ".join(f"{printable(name)} {number(value)}" for name, value in verdict.metrics.items())
    if verdict.problems:
        yield f"not readable: {printable(verdict.problems[0])}" + _more(len(verdict.problems) - 1)
    if verdict.status == "unreadable" or not verdict.train_steps:  # rules would only repeat that there was no data
        return
    if verdict.unjudged and verdict.status != "not judged":
        yield f"little could be evaluated: {printable(verdict.unjudged)}"
    yield length(verdict)
    for past in verdict.bypassed:
        yield _bypassed(past, verdict)
    silent = [status for status in verdict.statuses if status.status in (Status.STARVED, Status.ERROR)]
    for status in silent:
        yield f"{printable(status.rule)} {_SILENCE[status.status]}: {printable(status.reason) or 'no reason given'}"
    spoke = len(verdict.statuses) - len(silent)
    if spoke:
        unfit = sum(status.status is Status.NOT_APPLICABLE for status in verdict.statuses)
        yield f"{count(spoke, 'rule')} evaluated" + (f", {unfit} of them not applicable here" if unfit else "")
    yield from capture_lines(verdict.capture)


def _ended_early(verdict: Verdict) -> Iterator[str]:
    """The workers that ended before their script, grouped by how they ended."""
    groups: dict[str, list[str]] = {}
    for failure in verdict.ended_early:
        lost = failure.kind == "lost"
        how = "like a terminated process" if lost else failure_sentence(failure)
        groups.setdefault(how, []).append(failure.worker)
    for how, workers in groups.items():
        yield f"{workers_named(workers)} ended early, {how}; the script itself ended with exit status 0"


def _bypassed(past: BypassedUpdates, verdict: Verdict) -> str:
    """``"19 training steps from step 21 on bypassed PyTorch's hooks ..."``."""
    many = f"{count(past.steps, 'training step')} from" if past.steps is not None else "training steps from"
    whose = f" of {printable(past.worker)}" if len({each.worker for each in verdict.bypassed}) > 1 else ""
    return (
        f"{many} step {past.since} on{whose} bypassed PyTorch's hooks ({printable(past.reason)}); recorded from the "
        "changed weights, without the learning rate"
    )


def _more(amount: int) -> str:
    return f", and {amount:,} more" if amount > 0 else ""


_SILENCE = {Status.STARVED: "could not be evaluated", Status.ERROR: "failed"}


def length(verdict: Verdict) -> str:
    """Steps and time of the run, and the steps, time and cost that a stop saved."""
    text = count(verdict.train_steps, "training step")
    planned = verdict.planned_train_steps
    if planned is not None and planned > verdict.train_steps:
        text = f"{verdict.train_steps:,} of {count(planned, 'training step')}"
    text += f" in {duration(verdict.seconds)}"
    return f"stopped after {text}: {saved(verdict)}" if verdict.status == "stopped" else text


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


def _in_full(diagnosis: Diagnosis, verdict: Verdict) -> Iterator[TextRow]:
    yield from beginning(diagnosis, verdict)
    for position, ranked in enumerate(diagnosis.causes):
        yield TextRow(_rank(ranked), "or" if position else "cause")
        if position == 0:
            yield TextRow(printable(ranked.cause.explanation), "", "dim")
        for sentence in ranked.against[:_AGAINST]:
            yield TextRow(f"against it: {printable(sentence)}", "", "dim")
    links = chain(findings_of(diagnosis, verdict))
    for position, link in enumerate(links[:_CHAIN]):
        yield TextRow(link, "chain" if position == 0 else "")
    if len(links) > _CHAIN:
        yield TextRow(f"and {count(len(links) - _CHAIN, 'further finding')}", "")
    for position, advice in enumerate(diagnosis.what_to_try[:_ADVICE]):
        yield TextRow(printable(advice), "try" if position == 0 else "", "bold" if position == 0 else "")


def _rank(ranked: RankedCause) -> str:
    """A cause with its probability and the first step of its evidence."""
    return f"{printable(ranked.cause.title)} ({percent(ranked.score)}, from step {ranked.step} on)"


def findings_of(diagnosis: Diagnosis, verdict: Verdict) -> list[Finding]:
    """The findings that a diagnosis explains, earliest first."""
    known = {finding.id: finding for finding in verdict.findings}
    return [known[name] for name in diagnosis.findings if name in known]


def beginning(diagnosis: Diagnosis, verdict: Verdict) -> Iterator[TextRow]:
    """Rows with the first place and the first step of a diagnosis."""
    if diagnosis.subject:
        yield TextRow(printable(diagnosis.subject), "first in")
    yield TextRow(since(diagnosis, verdict), "since")


def since(diagnosis: Diagnosis, verdict: Verdict) -> str:
    """``"step 37"``, with mode, workers and attempt if they differ from the default ones."""
    first = next(iter(findings_of(diagnosis, verdict)), None)
    text = f"step {diagnosis.step}"
    if first is not None and first.mode.name != "TRAIN":
        text += f" of {first.mode.name}"
    workers = diagnosis.workers or ((first.worker,) if first is not None else ())
    text += f" on {workers_named(workers)}" if workers not in ((), ("worker_0",)) else ""
    text += f" of {models_named(diagnosis.models)}" if diagnosis.models not in ((), (0,)) else ""
    return text + (f", in attempt {first.attempt}" if first is not None and first.attempt < verdict.attempt else "")


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
    """The symptoms in the order given: step, rule, message. Equal symptoms of several workers are one."""
    return [chain_link(group) for group in alike(findings)]


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


def chain_link(findings: Sequence[Finding]) -> str:
    """One symptom, perhaps of several workers: ``"step 4: ExplodingTensor: the loss became NaN"``."""
    first = findings[0]
    workers = {finding.worker for finding in findings}
    notes = [
        f"{first.count} times until step {first.last_step}" if first.count > 1 else "",
        f"on {len(workers)} workers" if len(workers) > 1 else "",
    ]
    note = "; ".join(filter(None, notes))
    text = f"step {first.step}: {printable(first.rule)}: {printable(first.message)}"
    return text + (f" ({note})" if note else "")


def unexplained(verdict: Verdict, most: int = _CHAIN) -> Iterator[TextRow]:
    """Findings that belong to no diagnosis, at most ``most`` of them."""
    explained = {name for diagnosis in verdict.diagnoses for name in diagnosis.findings}
    rest = [finding for finding in verdict.findings if finding.id not in explained]
    if rest:
        yield TextRow("")
        yield TextRow("also seen" if verdict.diagnoses else "seen")
    for finding in rest[:most]:
        yield TextRow(chain([finding])[0], finding.severity.value, STYLES[finding.severity.value])
    if len(rest) > most:
        yield TextRow(f"and {count(len(rest) - most, 'further finding')}", "")
