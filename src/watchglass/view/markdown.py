"""Verdicts as GitHub-flavoured Markdown, for a comment on a pull request. GitLab and Gitea show it alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from watchglass.records import Diagnosis, Finding, Verdict, count
from watchglass.view.conclusion import Terms, failed_rules, not_answered, outcome
from watchglass.view.formats import Judged
from watchglass.view.text import number, percent, printable
from watchglass.view.verdict_sentences import chain, closing, findings_of, headline, since

#: Longest comment that GitHub accepts, in characters as JavaScript counts them, with a reserve for the caller.
MOST_CHARACTERS = 65_536 - 536
#: Characters of a cell, and of a sentence.
_CELL, _SENTENCE = 300, 600
#: Most rows of each part of a comment on one run.
_DIAGNOSES, _FINDINGS, _CAUSES, _ADVICE, _CHAIN = 20, 200, 3, 5, 8

_MARKS = {"clean": "✅", "findings": "❌", "no answer": "⚠️"}
_SEVERITIES = {"error": "🔴 error", "warning": "🟡 warning", "info": "🔵 info"}

#: Characters with a meaning in Markdown or in links of GitHub.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#|~$!^])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
#: Characters that make a line a list item or a heading if it begins with them.
_LEADING = re.compile(r"^([-+=]|\d+(?=[.)]))(.?)")
#: Characters that begin a reference in GitLab, in addition to @ and #.
_REFERENCE = re.compile(r"([!~%$^&])(?=[\w\"'])")
#: An invisible character that prevents a mention, a reference or a link where it is inserted.
_BREAK = "\u200b"


def markdown_document(judged: Judged) -> str:
    """A comment on one run, or on many a table of runs and the faults of each.

    All text from a run is escaped: it cannot end a cell, open a tag, make a link or mention people.
    Parts that do not fit into :data:`MOST_CHARACTERS` are omitted and counted.
    """
    verdicts, terms = judged.verdicts, judged.terms
    if not judged.many:
        (verdict,) = verdicts
        return _joined(
            [f"## {_MARKS[outcome(verdict, terms)]} watchglass: {escape(headline(verdict))}\n", *_whole(verdict, terms)]
        )
    outcomes = [outcome(each, terms) for each in verdicts]
    amounts = Counter(outcomes)
    worst = "findings" if amounts["findings"] else "no answer" if amounts["no answer"] else "clean"
    head = (
        f"## {_MARKS[worst]} watchglass: {count(len(verdicts), 'run')}, {amounts['findings']:,} with findings, "
        f"{amounts['no answer']:,} without an answer\n"
    )
    ordered = sorted(zip(outcomes, verdicts, strict=True), key=lambda pair: pair[0] == "clean")  # faults first
    wrong = [each for answer, each in ordered if answer != "clean"]
    rows = [
        f"| {_MARKS[answer]} | {_code(each.run)} | {_cell(headline(each))} | {each.train_steps:,} |"
        for answer, each in ordered
    ]
    table = _table("| | run | verdict | steps |\n|---|---|---|--:|", rows, "run")
    return _joined([head, *table, *(block for each in wrong for block in _folded(each, terms))])


def _folded(verdict: Verdict, terms: Terms) -> Iterator[str]:
    """The section on one of many runs, collapsed. It is one block, because a part of it would leave a tag open."""
    body = "\n".join(_whole(verdict, terms, details=False))
    summary = f"<code>{in_html(verdict.run)}</code>: {in_html(headline(verdict))}"
    yield f"\n<details><summary>{summary}</summary>\n\n{body}\n</details>"


def _whole(verdict: Verdict, terms: Terms, *, details: bool = True) -> Iterator[str]:
    yield f"Run {_code(verdict.run)}\n"
    for text in filter(None, (not_answered(verdict, terms), *failed_rules(verdict))):
        yield f"> {_MARKS['no answer']} {escape(text)}\n"
    if verdict.diagnoses:
        rows = [_diagnosis_row(each, verdict) for each in verdict.diagnoses[:_DIAGNOSES]]
        left = len(verdict.diagnoses) - len(rows)
        yield "| | what | since | likely cause | try |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
        if left:
            yield f"and {count(left, 'further diagnosis', 'further diagnoses')}\n"
    for diagnosis in verdict.diagnoses[: _DIAGNOSES if details else 3]:
        yield _in_full(diagnosis, chain(findings_of(diagnosis, verdict)))
    if details and verdict.findings:
        yield _findings(verdict.findings)
    if details:
        yield _rules(verdict)
    for line in closing(verdict):
        yield f"{escape(line)}  "


def _diagnosis_row(diagnosis: Diagnosis, verdict: Verdict) -> str:
    causes = diagnosis.causes[:1]
    cells = (
        _SEVERITIES[diagnosis.severity.value],
        _cell(diagnosis.headline),
        _cell(since(diagnosis, verdict)),
        *([_cell(f"{each.cause.title} ({percent(each.score)})") for each in causes] or [""]),
        _cell(diagnosis.what_to_try[0]) if diagnosis.what_to_try else "",
    )
    return f"| {' | '.join(cells)} |"


def _in_full(diagnosis: Diagnosis, links: Sequence[str]) -> str:
    lines = [f"<details><summary>{in_html(diagnosis.headline)}</summary>\n"]
    if diagnosis.subject:
        lines.append(f"First in {_code(diagnosis.subject)}.\n")
    lines += [
        f"- **{escape(each.cause.title)}** ({percent(each.score)}): {escape(each.cause.explanation)}"
        for each in diagnosis.causes[:_CAUSES]
    ]
    lines.append("\nWhat to try:\n" if diagnosis.what_to_try else "")
    lines += [f"1. {escape(advice)}" for advice in diagnosis.what_to_try[:_ADVICE]]
    lines.append("\nSymptoms, earliest first:\n" if links else "")
    lines += [f"- {escape(link)}" for link in links[:_CHAIN]]
    if len(links) > _CHAIN:
        lines.append(f"- and {count(len(links) - _CHAIN, 'further finding')}")
    return "\n".join(lines) + "\n\n</details>\n"


def _findings(findings: Sequence[Finding]) -> str:
    rows = [
        f"| {_SEVERITIES[each.severity.value]} | {_cell(each.rule)} | {each.step} | {_cell(each.message)} "
        f"| {_cell(number(each.value))} | {_cell(number(each.limit))} |"
        for each in findings[:_FINDINGS]
    ]
    rows = _fitting(rows)
    left = len(findings) - len(rows)
    more = f"\n\nand {count(left, 'further finding')}" if left else ""
    head = "| | rule | step | what | value | limit |\n|---|---|--:|---|--:|--:|\n"
    summary = f"<details><summary>{count(len(findings), 'finding')}</summary>\n\n"
    return summary + head + "\n".join(rows) + more + "\n\n</details>\n"


def _rules(verdict: Verdict) -> str:
    if not verdict.statuses:
        return ""
    rows = "".join(
        f"| {_cell(each.rule)} | {each.status.value} | {_cell(each.reason)} |\n"
        for each in verdict.statuses[:_FINDINGS]
    )
    summary = f"<details><summary>{count(len(verdict.statuses), 'rule')}</summary>\n\n"
    return f"{summary}| rule | status | why |\n|---|---|---|\n{rows}\n</details>\n"


def _table(head: str, rows: list[str], noun: str) -> Iterator[str]:
    """A table as one block."""
    shown = _fitting(rows)
    yield head + "\n" + "\n".join(shown) + "\n"
    if len(shown) < len(rows):
        yield f"and {count(len(rows) - len(shown), f'further {noun}')}\n"


def _fitting(rows: list[str]) -> list[str]:
    """The first rows, for at most a third of the space: blocks are kept or omitted as a whole."""
    while rows and len("\n".join(rows)) > MOST_CHARACTERS // 3:
        rows = rows[: 2 * len(rows) // 3]
    return rows


def _joined(blocks: list[str]) -> str:
    """As many whole blocks as fit."""
    free = MOST_CHARACTERS - 200
    kept: list[str] = []
    for position, block in enumerate(blocks):
        free -= len(block.encode("utf-16-le")) // 2 + 1
        if free < 0:
            kept.append(f"\n{count(len(blocks) - position, 'section')} omitted: the comment is full.")
            break
        kept.append(block)
    return "\n".join(kept).rstrip() + "\n"


def escape(text: str, most: int = _SENTENCE) -> str:
    """Foreign text as Markdown that shows exactly this text in one line, without any other effect."""
    line = _harmless(_SPECIAL.sub(r"\\\1", _shortened(text, most)))
    return _LEADING.sub(lambda found: f"{found[1]}\\{found[2]}" if found[1].isdigit() else f"\\{found[0]}", line)


def in_html(text: str) -> str:
    """Foreign text in a block of HTML, where Markdown has no effect."""
    return _harmless(_shortened(text, _SENTENCE))


def _shortened(text: str, most: int) -> str:
    line = printable(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def _harmless(line: str) -> str:
    """Without tags, and without characters that GitHub turns into mentions, references and links."""
    line = _REFERENCE.sub(rf"\1{_BREAK}", line)
    line = "".join(_ENTITIES.get(letter, letter) for letter in line)
    line = line.replace("@", f"@{_BREAK}").replace("://", f":{_BREAK}//").replace("www.", f"www{_BREAK}.")
    line = line.replace("#", f"#{_BREAK}")
    return re.sub(r"\b(GH)-(?=\d)", rf"\1{_BREAK}-", line, flags=re.IGNORECASE)


def _cell(text: str) -> str:
    return escape(text, _CELL)


def _code(text: str) -> str:
    return f"<code>{_cell(text)}</code>"
