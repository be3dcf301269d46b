"""Verdict, findings and settings of a run in the Markdown that TensorBoard shows: tables and lists, no HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from watchglass.records import Mode, Verdict, count
from watchglass.view import escape, headline, number, percent, setting_rows

if TYPE_CHECKING:
    from watchglass.records import Finding
    from watchglass.run import Run

#: Most findings of a rule that are listed, the first ones; causes of a diagnosis, and pieces of advice.
_FINDINGS, _CAUSES, _ADVICE = 50, 3, 5


def settings_text(run: Run) -> str:
    """The recorded settings of a run as a table, and where it was resumed."""
    seams = [("Resumed", str(seam)) for seam in run.seams]
    return _table(("setting", "value"), [("Run", run.location), *setting_rows(run), *seams])


def verdict_text(verdict: Verdict) -> str:
    """The verdict: each diagnosis with its causes and what to try."""
    lines = [f"### {escape(headline(verdict))}", ""]
    for diagnosis in verdict.diagnoses:
        lines += [f"**{escape(diagnosis.headline)}** (since step {diagnosis.step})", ""]
        lines += [
            f"- {escape(each.cause.title)} ({percent(each.score)}): {escape(each.cause.explanation)}"
            for each in diagnosis.causes[:_CAUSES]
        ]
        lines += [f"- try: {escape(advice)}" for advice in diagnosis.what_to_try[:_ADVICE]]
        lines.append("")
    silent = [status for status in verdict.statuses if status.reason]
    if silent:
        lines += [f"Without an answer, or with a note: {count(len(silent), 'rule')}.", ""]
        lines.append(
            _table(("rule", "status", "why"), [(each.rule, each.status.value, each.reason) for each in silent])
        )
    return "\n".join(lines)


def finding_texts(verdict: Verdict) -> dict[str, str]:
    """The findings of each rule as a list, by tag."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in sorted(verdict.findings, key=lambda each: each.step):
        by_rule.setdefault(finding.rule, []).append(finding)
    return {f"findings/{rule}": "\n".join(_findings(found)) for rule, found in by_rule.items()}


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    for each in found[:_FINDINGS]:
        mode = "" if each.mode is Mode.TRAIN else f"{each.mode.name} "
        limit = f" (measured {number(each.value)}, limit {number(each.limit)})" if each.limit is not None else ""
        yield f"- **{each.severity.value}** at {mode}step {each.step}: {escape(each.message)}{limit}"
    left = len(found) - _FINDINGS
    if left > 0:
        yield f"- and {count(left, 'further finding')}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"
    return "\n".join([head, *(f"| {' | '.join(map(escape, row))} |" for row in rows)])
