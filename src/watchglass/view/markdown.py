"""Verdicts and blocks as GitHub-flavoured Markdown, for a comment on a pull request. GitLab and Gitea show it alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import singledispatch

from watchglass.records import Diagnosis, Finding, Severity, Verdict, count
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
from watchglass.view.conclusion import Terms, failed_rules, not_answered, outcome
from watchglass.view.formats import Judged
from watchglass.view.pictures.numbers import numbers_of
from watchglass.view.sections import diagnosis_blocks, status_blocks
from watchglass.view.text import number, percent, printable
from watchglass.view.verdict_sentences import closing, headline, since

#: Longest comment that GitHub accepts, in characters as JavaScript counts them, with a reserve for the caller.
MOST_CHARACTERS = 65_536 - 536
#: Characters of a cell, and of a sentence.
_CELL, _SENTENCE = 300, 600
#: Most rows of each part of a comment on one run.
_DIAGNOSES, _FINDINGS, _ITEMS = 20, 200, 8

_MARKS = {"clean": "✅", "findings": "❌", "no answer": "⚠️"}
_SIGNS = {"error": "🔴", "warning": "🟡", "info": "🔵"}
#: A number in a cell.
_DIGITS = re.compile(r"-?[\d.,]+(e[+-]?\d+)?")

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
        (_MARKS[answer], Span(each.run, "code"), headline(each), f"{each.train_steps:,}") for answer, each in ordered
    ]
    shown = rows[: len(_fitting([_row(row) for row in rows]))]
    left = len(rows) - len(shown)
    more = [f"and {count(left, 'further run')}\n"] if left else []
    table = block_markdown(TextTable(("", "run", "verdict", "steps"), shown))
    return _joined([head, table, *more, *(block for each in wrong for block in _folded(each, terms))])


def _folded(verdict: Verdict, terms: Terms) -> Iterator[str]:
    """The section on one of many runs, collapsed. It is one block, because a part of it would leave a tag open."""
    body = "\n".join(_whole(verdict, terms, details=False))
    summary = f"<code>{in_html(verdict.run)}</code>: {in_html(headline(verdict))}"
    yield f"\n<details><summary>{summary}</summary>\n\n{body}\n</details>"


def _whole(verdict: Verdict, terms: Terms, *, details: bool = True) -> Iterator[str]:
    """The parts of a comment on a run, each of which can be left out as a whole."""
    yield f"Run {_code(verdict.run)}\n"
    for text in filter(None, (not_answered(verdict, terms), *failed_rules(verdict))):
        yield f"> {_MARKS['no answer']} {escape(text)}\n"
    blocks: list[Block] = []
    if verdict.diagnoses:
        rows = [_diagnosis_row(each, verdict) for each in verdict.diagnoses[:_DIAGNOSES]]
        blocks.append(TextTable(("", "what", "since", "likely cause", "try"), rows))
        if left := len(verdict.diagnoses) - len(rows):
            blocks.append(Text(f"and {count(left, 'further diagnosis', 'further diagnoses')}"))
    shown = diagnosis_blocks(verdict)[: _DIAGNOSES if details else 3]
    blocks += [Disclosure(each.title, each.blocks) for each in shown]
    if details and verdict.findings:
        blocks.append(Disclosure(count(len(verdict.findings), "finding"), _findings(verdict.findings)))
    if details and verdict.statuses:
        rules = status_blocks(verdict.statuses[:_FINDINGS])
        blocks.append(Disclosure(count(len(verdict.statuses), "rule"), rules))
    yield from map(block_markdown, blocks)
    for line in closing(verdict):
        yield f"{escape(line)}  "


def _diagnosis_row(diagnosis: Diagnosis, verdict: Verdict) -> Sequence[Inline]:
    causes = [f"{each.cause.title} ({percent(each.score)})" for each in diagnosis.causes[:1]]
    tried = [*diagnosis.what_to_try[:1], ""]
    return (_severity(diagnosis.severity), diagnosis.headline, since(diagnosis, verdict), *(causes or [""]), tried[0])


def _severity(severity: Severity) -> Span:
    return Span(severity.value, f"tag {severity.value}")


def _findings(findings: Sequence[Finding]) -> list[Block]:
    """Narrower than the table of a page: what fits beside a discussion, for at most a third of the space."""
    rows = [
        (_severity(each.severity), each.rule, f"{each.step}", each.message, number(each.value), number(each.limit))
        for each in findings[:_FINDINGS]
    ]
    head = ("", "rule", "step", "what", "value", "limit")
    rows = rows[: len(_fitting([_row(row) for row in rows]))]
    left = len(findings) - len(rows)
    return [TextTable(head, rows), *([Text(f"and {count(left, 'further finding')}")] if left else [])]


@singledispatch
def block_markdown(block: Block) -> str:
    """A block as Markdown."""
    raise TypeError(f"no way to write {type(block).__name__} as Markdown")


@block_markdown.register
def _text(block: Text) -> str:
    return f"{_inline(block.content)}\n"


@block_markdown.register
def _table_of(block: TextTable) -> str:
    columns = zip(*block.rows, strict=True) if block.rows else [() for _ in block.head]
    lines = ["--:" if cells and all(map(_is_number, cells)) else "---" for cells in columns]
    head = _row(block.head or [""] * len(lines))
    return "\n".join([head, f"|{'|'.join(lines)}|", *map(_row, block.rows)]) + "\n"


def _row(cells: Sequence[Inline]) -> str:
    return f"| {' | '.join(_inline(cell, _CELL) for cell in cells)} |"


def _is_number(cell: Inline) -> bool:
    return isinstance(cell, str) and _DIGITS.fullmatch(cell) is not None


@block_markdown.register
def _items(block: Items) -> str:
    sign = "1." if block.ordered else "-"
    lines = [f"{sign} {_item(item)}" for item in block.items[:_ITEMS]]
    left = len(block.items) - len(lines)
    return "\n".join([*lines, *([f"{sign} and {left:,} more"] if left else [])]) + "\n"


def _item(item: Block | str | Sequence[Block]) -> str:
    """An item in one line: of several blocks the texts; what a page folds inside of a list is left out."""
    if isinstance(item, str):
        return escape(item)
    texts = [each for each in ([item] if isinstance(item, Block) else item) if isinstance(each, Text)]
    return "<br>".join(_inline(each.content) for each in texts)


@block_markdown.register
def _pairs(block: Pairs) -> str:
    found = []
    for label, blocks in block.pairs:
        short = len(blocks) == 1 and isinstance(blocks[0], Text)
        text = "\n".join(map(block_markdown, blocks))
        found += [f"{escape(label)}:{' ' if short else chr(10) * 2}{text}"] if blocks else []
    return "\n".join(found)


@block_markdown.register
def _figure(block: Figure) -> str:
    """The numbers of a picture, because comments hold no pictures."""
    return block_markdown(Disclosure(block.picture.title, [numbers_of(block.picture), Text(block.caption)]))


@block_markdown.register
def _gallery(block: Gallery) -> str:
    return "\n".join(map(block_markdown, block.figures))


@block_markdown.register
def _disclosure(block: Disclosure) -> str:
    body = "\n".join(map(block_markdown, block.blocks))
    return f"<details><summary>{in_html(block.title)}</summary>\n\n{body}\n</details>\n"


@block_markdown.register
def _section(block: Section) -> str:
    body = "\n".join(map(block_markdown, block.blocks))
    return f"{'#' * (block.level + 1)} {escape(block.title)}\n\n{body}" if block.blocks else ""


def _inline(content: Inline, most: int = _SENTENCE) -> str:
    if isinstance(content, str):
        return escape(content, most)
    if not isinstance(content, Span):
        return " ".join(_inline(each, most) for each in content)
    text = escape(content.text, most)
    if content.role.startswith("tag "):
        return f"{_SIGNS[content.role.removeprefix('tag ')]} {text}"
    return {"code": f"<code>{text}</code>", "strong": f"**{text}**", "score": f"({text})"}.get(content.role, text)


def _fitting(rows: list[str]) -> list[str]:
    """The first rows, for at most a third of the space: parts are kept or omitted as a whole."""
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
