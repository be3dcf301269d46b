"""The verdict of a run for the terminal: as plain text or in a coloured frame, both from one outline of rows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watchglass.records import Diagnosis, Severity, Verdict, count
from watchglass.view.capture_cost import memory_growth, notable_wait
from watchglass.view.conclusion import Terms, outcome
from watchglass.view.failure import failure_lines
from watchglass.view.text import command, printable
from watchglass.view.verdict_sentences import cause_in_words, chain, closing, findings_of, headline, reservations, since

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Colours of rich by severity; "" means no finding.
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "": "bold green"}

#: Most diagnoses that are shown in full, and most that are shown at all: the others have a headline only.
_IN_FULL, _DIAGNOSES = 3, 20
#: Most symptoms of a chain that are shown, and most sentences of advice.
_CHAIN, _ADVICE = 5, 3
#: Most sentences against a cause.
_AGAINST = 1


@dataclass(frozen=True)
class TextRow:
    """A line of the outline."""

    text: str  #: The text.
    #: The label before it; "" for a row that continues the previous one; None for text over the whole width.
    label: str | None = None
    style: str = ""  #: A style of rich.
    #: Indent of further lines of text over the whole width, in characters: the width of a number or an id.
    hang: int = 0


def verdict_text(verdict: Verdict, *, width: int = 100, options: Sequence[str] = (), verbose: bool = False) -> str:
    """The verdict as plain text, wrapped at ``width``; ``options`` and ``verbose`` as for :func:`outline`."""
    return rows_text(outline(verdict, options, verbose=verbose), width=width)


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
    unsure = outcome(verdict, Terms()) == "no answer" or bool(reservations(verdict))
    return "warning" if unsure else ""


def outline(verdict: Verdict, options: Sequence[str] = (), *, verbose: bool = False) -> list[TextRow]:
    """The whole verdict, in order.

    Args:
        verdict: The verdict.
        options: Options with which ``explain`` and ``check`` evaluate the same rules, ``["--rules", "llm"]``; none for
            the verdict of the evaluator of the run.
        verbose: Add the cost of watching, how many rules were evaluated, and why others were not.
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
    below = [TextRow(text) for text in closing(verdict, options, brief=not verbose)]
    rows += [TextRow(""), *below] if below and len(rows) > 1 else below
    if verdict.diagnoses:
        rows.append(TextRow(f"each cause with its evidence: {command('explain', verdict.run, *options)}"))
    # The default set has no rules about time and memory, so no diagnosis names the cure.
    judged = {status.rule for status in verdict.statuses}
    why = command("check", verdict.run, "--rules", "system")
    if below and "InputBound" not in judged and notable_wait(verdict.capture) is not None:
        rows.append(TextRow(f"why steps wait, and what to try: {why}"))
    if below and "MemoryLeak" not in judged and memory_growth(verdict.capture) is not None:
        rows.append(TextRow(f"what grows, and what to try: {why}"))
    return rows


def heading(verdict: Verdict) -> list[TextRow]:
    """The verdict in one line, and for a failed run the line of the script that failed."""
    lines = (TextRow(text, label) for label, text in failure_lines(verdict))
    return [TextRow(headline(verdict), style=STYLES[tone(verdict)]), *lines]


def diagnosis_row(position: int, diagnosis: Diagnosis) -> TextRow:
    """A diagnosis in a sentence, with its number."""
    number = f"{position}. "
    return TextRow(number + printable(diagnosis.headline), style=STYLES[diagnosis.severity.value], hang=len(number))


def _in_full(diagnosis: Diagnosis, verdict: Verdict) -> Iterator[TextRow]:
    yield from beginning(diagnosis, verdict)
    for position, ranked in enumerate(diagnosis.causes):
        yield TextRow(cause_in_words(ranked), "or" if position else "cause")
        if position == 0:
            yield TextRow(printable(ranked.cause.explanation), "", "dim")
        for sentence in ranked.against[:_AGAINST]:
            yield TextRow(f"against it: {printable(sentence)}", "", "dim")
    links = chain(findings_of(diagnosis, verdict), diagnosis.headline)
    for position, link in enumerate(links[:_CHAIN]):
        yield TextRow(link, "chain" if position == 0 else "")
    if len(links) > _CHAIN:
        yield TextRow(f"and {count(len(links) - _CHAIN, 'further finding')}", "")
    for position, advice in enumerate(diagnosis.what_to_try[:_ADVICE]):
        yield TextRow(printable(advice), "try" if position == 0 else "", "bold" if position == 0 else "")


def beginning(diagnosis: Diagnosis, verdict: Verdict) -> Iterator[TextRow]:
    """Rows with the first place and the first step of a diagnosis."""
    if diagnosis.subject:
        yield TextRow(printable(diagnosis.subject), "first in")
    yield TextRow(since(diagnosis, verdict), "since")


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
