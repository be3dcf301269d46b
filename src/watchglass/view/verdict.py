"""The verdict of a run for the terminal: a screen of rows, as plain or coloured text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from watchglass.records import Diagnosis, Severity, Verdict, count
from watchglass.view.capture_cost import memory_growth, notable_wait
from watchglass.view.conclusion import Terms, outcome
from watchglass.view.failure import failure_lines
from watchglass.view.formats import Judged
from watchglass.view.text import command, percent, printable
from watchglass.view.verdict_sentences import (
    cause_in_words,
    chain,
    closing,
    examined,
    findings_of,
    growing,
    headline,
    metrics_in_words,
    place_in_words,
    reservations,
    saved_before,
    since,
    stated_by,
    symptoms_in_words,
)

#: Colours of rich by severity; "" means no finding.
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "": "bold green"}

#: Most diagnoses that are shown with their proof, and most that are shown at all.
_IN_FULL, _TITLES = 3, 6
#: A further cause with this score is stated beside the first one: alone it would be the cause.
_LIKELY = 0.5
#: Most findings without a diagnosis that are shown.
_UNEXPLAINED = 5
#: Characters of a line that terminals of a usual width do not break.
_WIDEST = 100


@dataclass(frozen=True)
class TextRow:
    """A line of a screen."""

    text: str  #: The text.
    #: The label before it; "" for a row that continues the previous one; None for text over the whole width.
    label: str | None = None
    style: str = ""  #: A style of rich.
    #: Indent of further lines of text over the whole width, in characters: the width of a number or an id.
    hang: int = 0


def text_document(judged: Judged) -> str:
    """The verdicts as plain text."""
    return rows_text(judged_rows(judged))


def judged_rows(judged: Judged) -> list[TextRow]:
    """The screen of each run; of many below its name, and all of them in one line at the end."""
    rows: list[TextRow] = []
    for verdict in judged.verdicts:
        shown = screen(verdict, judged.options, verbose=judged.verbose)
        rows += [TextRow(printable(verdict.run)), *shown, TextRow("")] if judged.many else shown
    return [*rows, TextRow(judged.headline)] if judged.many else rows


def verdict_text(verdict: Verdict, *, width: int = 100, options: Sequence[str] = (), verbose: bool = False) -> str:
    """The verdict as plain text, wrapped at ``width``; ``options`` and ``verbose`` as for :func:`screen`."""
    return rows_text(screen(verdict, options, verbose=verbose), width=width)


def rows_text(rows: Sequence[TextRow], *, width: int = 100) -> str:
    """Rows as plain text, wrapped at ``width``."""
    return "\n".join(line for line, _ in wrapped(rows, width)) + "\n"


def wrapped(rows: Sequence[TextRow], width: int) -> Iterator[tuple[str, str]]:
    """The lines of rows, each with the style of its row."""
    for row in rows:
        indent = "" if row.label is None else f"   {row.label:<8} "
        lines = textwrap.wrap(
            row.text,
            width,
            initial_indent=indent,
            subsequent_indent=" " * (len(indent) or row.hang),
            break_long_words=False,
            break_on_hyphens=False,  # paths and options have some
        )
        yield from ((line, row.style) for line in lines or [""])


def tone(verdict: Verdict) -> str:
    """``"error"`` for a failed run, else the highest severity; "warning" without an answer, "" for a clean run."""
    if verdict.status == "failed":
        return Severity.ERROR.value
    if verdict.findings:
        return max(verdict.findings, key=lambda finding: finding.severity.rank).severity.value
    unsure = outcome(verdict, Terms()) == "no answer" or bool(reservations(verdict))
    return "warning" if unsure else ""


def screen(verdict: Verdict, options: Sequence[str] = (), *, verbose: bool = False) -> list[TextRow]:
    """The verdict on one screen: what was found, the cause with the numbers that prove it, what to try, where more is.

    A healthy run has two lines. Findings are named with their steps; their evidence is in ``watchglass explain``.

    Args:
        verdict: The verdict.
        options: Options with which ``explain`` and ``check`` evaluate the same rules, ``["--rules", "llm"]``; none for
            the verdict of the evaluator of the run.
        verbose: Add the cost of watching, how many rules were evaluated, and why others were not.
    """
    style = STYLES[tone(verdict)]
    if verdict.status == "no issues found" and not verdict.findings and not verbose:
        rows = [TextRow(_in_a_sentence(verdict), style=style)]
        rows += [TextRow(text) for text in closing(verdict, options, brief=True, sentence=True)]
        return [*rows, *_more(verdict, options)]
    diagnoses = verdict.diagnoses
    first, *further = heading(verdict)
    rows = [replace(first, text=first.text.removeprefix("issues found: ") + _causes(verdict)), *further]
    for position, diagnosis in enumerate(diagnoses[:_IN_FULL], 1):
        rows += _proven(diagnosis, verdict, position if len(diagnoses) > 1 else 0)
    rows += [diagnosis_row(*numbered) for numbered in enumerate(diagnoses[_IN_FULL:_TITLES], _IN_FULL + 1)]
    if len(diagnoses) > _TITLES:
        rows.append(TextRow(f"and {count(len(diagnoses) - _TITLES, 'further diagnosis', 'further diagnoses')}"))
    rows += unexplained(verdict)
    rows += [TextRow(text) for text in closing(verdict, options, brief=not verbose)]
    if not diagnoses:
        return [*rows, *_more(verdict, options)] if verdict.train_steps else rows
    evidence, page = command("explain", verdict.run, *options), command("report", verdict.run)
    return [*rows, TextRow(f"evidence: {evidence}"), TextRow(f"page: {page}")]


def _in_a_sentence(verdict: Verdict) -> str:
    """In one sentence.

    ``"no issues found in 132 steps (24 examined): loss 0.476; 15 % of a step is a wait for data. runs/mine"``.
    """
    begin, _, failed = headline(verdict).partition("no issues found")
    about = [metrics_in_words(verdict), *growing(verdict), failed.removeprefix(": ")]
    said = "; ".join(filter(None, about))
    steps = count(verdict.train_steps, "step") + examined(verdict, brief=True)
    return f"{begin}no issues found in {steps}{f': {said}' if said else ''}. {printable(verdict.run)}"


def _more(verdict: Verdict, options: Sequence[str]) -> list[TextRow]:
    # The default set has no rules about time and memory, so no finding names the cure.
    judged = {status.rule for status in verdict.statuses}
    waits = notable_wait(verdict.capture) is not None and "InputBound" not in judged
    grows = memory_growth(verdict.capture) is not None and "MemoryLeak" not in judged
    why = " and ".join(filter(None, ("why steps wait" if waits else "", "what grows" if grows else "")))
    asked = ("--rules", "system") if why else ("-v", *options)
    check, page = command("check", verdict.run, *asked), command("report", verdict.run)
    check = f"{f'{why}, and more' if why else 'more'}: {check}"
    # A command that a line break cuts cannot be copied.
    whole = f"{check} · {page}"
    return [TextRow(whole)] if len(whole) <= _WIDEST else [TextRow(check), TextRow(f"page: {page}")]


def _causes(verdict: Verdict) -> str:
    """What the first line says of the causes: ``", one cause: the learning rate is too high (99 %), since step 0"``."""
    diagnoses = verdict.diagnoses
    if len(diagnoses) > 1:
        return f", {len(diagnoses):,} diagnoses"
    for diagnosis in diagnoses:
        name, _ = _name_and_proof(diagnosis)
        return f", {f'one cause: {name}, ' if name else ''}{_place(diagnosis, verdict)}"
    return ""


def _name_and_proof(diagnosis: Diagnosis) -> tuple[str, str]:
    """The cause that the headline states, with its probability, and the rest of the headline; "" if it states none."""
    for ranked in diagnosis.causes[:1]:
        title = f"{ranked.cause.title}: "
        if diagnosis.headline[: len(title)].lower() == title.lower():
            return f"{printable(ranked.cause.title)} ({percent(ranked.score)})", diagnosis.headline[len(title) :]
    return "", diagnosis.headline


def _place(diagnosis: Diagnosis, verdict: Verdict) -> str:
    subject = f", first in {printable(place_in_words(diagnosis, verdict))}" if diagnosis.subject else ""
    return f"since {since(diagnosis, verdict)}{subject}"


def _proven(diagnosis: Diagnosis, verdict: Verdict, position: int) -> Iterator[TextRow]:
    """A diagnosis: its name if it has a number among several, its proof, what to try, and its other symptoms."""
    name, proof = _name_and_proof(diagnosis)
    if position:
        number = f"{position}. "
        text = f"{name or printable(proof)}, {_place(diagnosis, verdict)}"
        yield TextRow(number + text, style=STYLES[diagnosis.severity.value], hang=len(number))
    findings = findings_of(diagnosis, verdict)
    crashed = _is_crash(diagnosis, verdict)
    if (name or not position) and not crashed:
        yield TextRow(printable(proof) + stated_by(findings, proof), "because" if name else "seen")
    if not name and diagnosis.causes:
        yield TextRow("; ".join(map(cause_in_words, diagnosis.causes)), "likely")
    likely = [each for each in diagnosis.causes[1:] if each.score >= _LIKELY] if name else []
    if likely:
        yield TextRow("; ".join(map(cause_in_words, likely)), "or")
    for advice in diagnosis.what_to_try[:1]:
        yield TextRow(printable(advice), "try", "bold")
    if others := symptoms_in_words(findings, diagnosis.headline):
        yield TextRow(others, "also")


def _is_crash(diagnosis: Diagnosis, verdict: Verdict) -> bool:
    """Whether a diagnosis only repeats the exception that the first line of the screen has, with its cause."""
    if verdict.failure is None or diagnosis.findings or not diagnosis.causes:
        return False
    repeated = diagnosis.headline.partition(": ")[2].removesuffix(" ...")
    return repeated in " ".join(verdict.failure.message.split())


def heading(verdict: Verdict) -> list[TextRow]:
    """The verdict in one line, and for a failed run the line of the script that failed."""
    lines = (TextRow(text, label) for label, text in failure_lines(verdict))
    return [TextRow(headline(verdict), style=STYLES[tone(verdict)]), *lines]


def diagnosis_row(position: int, diagnosis: Diagnosis) -> TextRow:
    """A diagnosis in a sentence, with its number."""
    number = f"{position}. "
    return TextRow(number + printable(diagnosis.headline), style=STYLES[diagnosis.severity.value], hang=len(number))


def beginning(diagnosis: Diagnosis, verdict: Verdict) -> Iterator[TextRow]:
    """Rows with the first place and the first step of a diagnosis."""
    if diagnosis.subject:
        yield TextRow(printable(place_in_words(diagnosis, verdict)), "first in")
    yield TextRow(since(diagnosis, verdict), "since")
    if saved := saved_before(diagnosis):
        yield TextRow(saved, "before")


def unexplained(verdict: Verdict, most: int = _UNEXPLAINED) -> Iterator[TextRow]:
    """Findings that belong to no diagnosis, at most ``most`` of them."""
    explained = {name for diagnosis in verdict.diagnoses for name in diagnosis.findings}
    rest = [finding for finding in verdict.findings if finding.id not in explained]
    for finding in rest[:most]:
        yield TextRow(chain([finding])[0], finding.severity.value, STYLES[finding.severity.value])
    if len(rest) > most:
        yield TextRow(f"and {count(len(rest) - most, 'further finding')}", "")
