"""Sections of pages of a run, as blocks: verdict, diagnoses, findings, rules, scalars, time, settings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from watchglass.records import Diagnosis, Finding, RankedCause, RuleStatus, Status, Verdict, count
from watchglass.view.blocks import (
    Block,
    Disclosure,
    Figure,
    Gallery,
    Inline,
    Items,
    Pairs,
    Section,
    Span,
    Text,
    TextTable,
)
from watchglass.view.capture_cost import capture_lines
from watchglass.view.failure import failure_lines
from watchglass.view.pictures import Lines
from watchglass.view.settings import packages_of, setting_rows
from watchglass.view.text import duration, number, percent
from watchglass.view.verdict import tone
from watchglass.view.verdict_sentences import (
    chain,
    closing,
    examined,
    findings_of,
    headline,
    place_in_words,
    saved_before,
    silent_rules,
    since,
)

if TYPE_CHECKING:
    from watchglass.run import Run

#: Most rows of the findings table; a reader does not go through more of them one by one.
_MAX_FINDINGS = 500
#: Tensors of a finding that its row names.
_TENSORS = 3
#: Evidence of at most this many sentences is shown unfolded.
_OPEN_EVIDENCE = 6


def summary_block(run: Run, verdict: Verdict, *, live: bool = False) -> Section:
    """The verdict in one line, and what else is known about the run; rules without an answer are folded.

    Args:
        run: The run.
        verdict: Its verdict.
        live: Whether the run goes on while the page is read, see :func:`live_tone`.
    """
    return _summary(verdict, live_tone(verdict) if live else tone(verdict), [str(seam) for seam in run.seams])


def verdict_blocks(verdict: Verdict) -> list[Block]:
    """A verdict on its own: its summary, diagnoses and findings."""
    found = [Disclosure(count(len(verdict.findings), "finding"), finding_blocks(verdict.findings))]
    return [_summary(verdict, tone(verdict)), *diagnosis_blocks(verdict), *(found if verdict.findings else [])]


def _summary(verdict: Verdict, severity: str, seams: Sequence[str] = ()) -> Section:
    lines = (*(text for _, text in failure_lines(verdict)), *closing(verdict, reasons=False), *seams)
    silent = [Disclosure(words, (Items(reasons),)) for words, reasons in silent_rules(verdict).items()]
    blocks = (Text(verdict.run, "path"), Items((*lines, *silent)))
    return Section(headline(verdict), blocks, level=1, tone=severity or "healthy", label="watchglass")


def live_tone(verdict: Verdict) -> str:
    """:func:`tone` for who looks at a run that goes on: that it has not ended is no reason to worry."""
    return "info" if verdict.status == "incomplete" else tone(verdict)


def diagnosis_blocks(verdict: Verdict) -> list[Section]:
    """Each diagnosis with its causes, their evidence, the symptoms and what to try."""
    return [_diagnosis(item, verdict) for item in verdict.diagnoses]


def _diagnosis(diagnosis: Diagnosis, verdict: Verdict) -> Section:
    causes = [_cause(ranked, rank) for rank, ranked in enumerate(diagnosis.causes, 1)]
    pairs: tuple[tuple[str, Sequence[Block]], ...] = (
        ("First in", [Text(Span(place_in_words(diagnosis, verdict), "code"))] if diagnosis.subject else ()),
        ("Since", [Text(since(diagnosis, verdict))]),
        ("Before", [Text(saved)] if (saved := saved_before(diagnosis)) else ()),
        ("Likely causes", _listed(causes, ordered=True)),
        ("Symptoms, in order", _listed(chain(findings_of(diagnosis, verdict)), ordered=True)),
        ("What to try", _listed(diagnosis.what_to_try)),
    )
    return Section(diagnosis.headline, [Pairs(pairs)], level=3, tone=diagnosis.severity.value)


def _listed(items: Sequence[Block | str | Sequence[Block]], *, ordered: bool = False) -> Sequence[Block]:
    return [Items(items, ordered)] if items else ()


def _cause(ranked: RankedCause, rank: int) -> Sequence[Block]:
    """A cause with the evidence for and against it, collapsed if it is long."""
    cause = ranked.cause
    score = Span(f"{percent(ranked.score)}, from step {ranked.step} on", "score")
    blocks: list[Block] = [Text((Span(cause.title, "strong"), score))]
    blocks += [Text(cause.explanation)] if cause.explanation else []
    evidence: list[Block] = []
    for title, lines in (("Evidence for", ranked.evidence), ("Evidence against", ranked.against)):
        evidence += [Text(title), Items(lines)] if lines else []
    opened = len(ranked.evidence) + len(ranked.against) <= _OPEN_EVIDENCE
    blocks += [Disclosure("Evidence", evidence, opened)] if evidence else []
    blocks += [Text(f"If so: {ranked.what_to_try[0]}", "if-so")] if rank > 1 and ranked.what_to_try else []
    return [*blocks, Text(f"Source: {cause.source}", "small")] if cause.source else blocks


def scalar_blocks(small: Sequence[Lines], more: int) -> list[Block]:
    """Small figures side by side."""
    note = f"{count(more, 'further series', 'further series')}; run.scalars(name) returns them."
    blocks: list[Block] = [Gallery([Figure(each) for each in small])] if small else []
    return [*blocks, Text(note)] if small and more else blocks


def setting_blocks(run: Run) -> list[Block]:
    """Command and settings of the run."""
    table = TextTable((), [("Command", Span(" ".join(run.manifest.command), "code")), *setting_rows(run)])
    packages = packages_of(run)
    listed = Disclosure(count(len(packages), "package"), [TextTable(("package", "release"), packages)])
    return [table, *([listed] if packages else [])]


def finding_blocks(found: Sequence[Finding]) -> list[Block]:
    """The findings as a table, of very many the worst."""
    if not found:
        return []
    rows = [
        (
            Span(finding.severity.value, f"tag {finding.severity.value}"),
            finding.rule,
            f"{finding.step}" if finding.last_step == finding.step else f"{finding.step} to {finding.last_step}",
            finding.mode.name,
            finding.worker or "all workers",
            _tensors(finding.tensors),
            number(finding.value),
            number(finding.limit),
            finding.message,
        )
        for finding in found[:_MAX_FINDINGS]
    ]
    left_out = len(found) - len(rows)
    note = f"{left_out} more are in the run; watchglass check --format json lists them all."
    head = ("severity", "rule", "steps", "mode", "worker", "tensors", "value", "limit", "finding")
    return [TextTable(head, rows, role="findings"), *([Text(note)] if left_out else [])]


def _tensors(names: Sequence[str]) -> Sequence[str | Span]:
    shown: list[str | Span] = [Span(name, "code") for name in names[:_TENSORS]]
    return [*shown, f"and {len(names) - _TENSORS} more"] if len(names) > _TENSORS else shown


def status_blocks(found: Sequence[RuleStatus]) -> list[Block]:
    """The status of each rule as a table, with the reason."""
    words = {Status.STARVED: "its data was not captured", Status.NOT_APPLICABLE: "does not apply to this run"}
    rows = [(item.rule, item.status.value, item.reason or words.get(item.status, "")) for item in found]
    return [TextTable(("rule", "status", "reason"), rows)] if rows else []


def folded_statuses(found: Sequence[RuleStatus]) -> list[Block]:
    """:func:`status_blocks` behind a line that counts them."""
    words = ", ".join(
        f"{amount} {status}" for status, amount in Counter(each.status.value for each in found).most_common()
    )
    return [Disclosure(f"{count(len(found), 'rule')}: {words}", status_blocks(found))] if found else []


def fact_blocks(run: Run, verdict: Verdict) -> list[Block]:
    """What the run is: its length, attempts, version, the cost of its capture."""
    manifest = run.manifest
    created = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(manifest.created_ns / 1e9))
    rows: list[tuple[str, Inline]] = [
        ("Run", Span(manifest.run_id, "code")),
        ("Started", created),
        ("Length", duration(verdict.seconds)),
        ("Training steps", f"{verdict.train_steps:,}{examined(verdict)}"),
        ("Attempts and workers", f"{len(run.attempts)} and {len(run.workers)}"),
        ("Written by", f"watchglass {manifest.version}, format {manifest.format[0]}.{manifest.format[1]}"),
        *(("Capture", line) for line in capture_lines(verdict.capture)),
        *(("Damaged", str(problem)) for problem in run.problems),
    ]
    return [TextTable((), rows)]
