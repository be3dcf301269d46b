"""The table of runs, a hundred a page: which of them needs me?"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from watchglass.dashboard.listing import SORTS, chosen
from watchglass.dashboard.shell import Links
from watchglass.diagnose import BEING_READ, RunSummary
from watchglass.records import count
from watchglass.view import SYMBOLS, duration, escaped, number, sparkline

#: Rows of a page.
ROWS = 100
_TITLES = {"run": "run", "state": "state", "verdict": "verdict", "steps": "steps", "loss": "loss", "started": "started"}


def runs_page(rows: Sequence[RunSummary], links: Links, *, query: str = "", sort: str = "", page: int = 1) -> str:
    """The table as HTML.

    Args:
        rows: All runs.
        links: Addresses.
        query: Words that each row must have.
        sort: The column by which rows are sorted, with ``-`` the other way round; "" for the newest first.
        page: Number of the page, from 1 on.

    Raises:
        KeyError: There is no such column.
    """
    found = chosen(rows, query, sort or "started")
    pages = max(1, math.ceil(len(found) / ROWS))
    page = min(max(page, 1), pages)
    here = found[(page - 1) * ROWS : page * ROWS]
    words = count(len(found), "run") + (f" of {len(rows):,}" if query else "")
    unread = sum(not row.read for row in rows)
    if unread:
        words += f", {unread:,} still to be read"
    body = "".join(_row(row, links) for row in here)
    table = (
        f'<form class="compare" action="{links.compare(())}"><table class="runs"><thead><tr>'
        f"{_head(links, query, sort)}<th><button>Compare</button></th></tr></thead><tbody>{body}</tbody></table></form>"
        if here
        else f'<p class="empty">No run has the words {escaped(query)}.</p>'
    )
    return (
        f'<form class="search" action="{links.runs()}" role="search"><input type="search" name="q" '
        f'value="{escaped(query)}" placeholder="search (/)" aria-label="Search runs">'
        f'<input type="hidden" name="sort" value="{escaped(sort)}"><button>Search</button> <span>{words}</span></form>'
        f"{table}{_pages(links, query, sort, page, pages)}"
    )


def _head(links: Links, query: str, sort: str) -> str:
    cells = []
    for name, title in _TITLES.items():
        turned = f"-{name}" if sort == name or (not sort and name == "started") else name
        order = ' aria-sort="ascending"' if sort == name else ' aria-sort="descending"' if sort == f"-{name}" else ""
        cells.append(f'<th{order}><a href="{escaped(links.runs(q=query, sort=turned))}">{title}</a></th>')
    return "".join(cells)


def _row(row: RunSummary, links: Links) -> str:
    begun = row.listed.created_ns
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(begun / 1e9)) if begun else ""
    name = f'<a href="{links.run(row.identifier)}">{escaped(row.listed.name)}</a>'
    cells = {
        "run": name,
        "state": _state(row),
        "verdict": _verdict(row),
        "steps": _steps(row),
        "loss": f"{_course(row)} {number(row.loss)}" if row.loss is not None else "",
        "started": started,
    }
    inner = "".join(f'<td data-title="{_TITLES[name]}">{cell}</td>' for name, cell in cells.items())
    chosen = (
        f'<input type="checkbox" name="run" value="{row.identifier}" aria-label="compare {escaped(row.listed.name)}">'
    )
    return f'<tr data-key="{row.identifier}">{inner}<td>{chosen}</td></tr>'


def _course(row: RunSummary) -> str:
    return sparkline(row.losses, "course of the loss", row.colour)


def _state(row: RunSummary) -> str:
    if not row.read:
        return "not read yet"
    left = f"<br><small>about {duration(row.seconds_left)} left</small>" if row.seconds_left is not None else ""
    return f"{escaped(row.state)}{left}"


def _verdict(row: RunSummary) -> str:
    if row.problem:
        return f'<span class="tag warning">▲</span> {escaped(row.problem)}'
    if not row.read:
        return ""
    sign = f'<span class="tag {row.tone or "healthy"}" aria-hidden="true">{SYMBOLS[row.tone]}</span>'
    worst = f"<br><small>{escaped(row.worst_diagnosis)}</small>" if row.worst_diagnosis else ""
    return f"{sign} {escaped(row.headline)}{worst}"


def opening_html(row: RunSummary) -> str:
    """What the table knows of a run, for its page while the run is opened."""
    known = f"<p>{_verdict(row)}</p><p>{_course(row)}</p>" if row.read else ""
    if row.state == BEING_READ:
        sentence = (
            f"So far the verdict, and one of {row.workers:,} workers, were read: {row.train_steps:,} training steps"
        )
        loss = f", loss {number(row.loss)}" if row.loss is not None else ""
        known = f"<p>{sentence}{loss}.</p>{known}{_accused(row)}"
    return f'<p class="empty">The run is being opened. This page appears as soon as it is read.</p>{known}'


def _accused(row: RunSummary) -> str:
    rows = "".join(
        f'<tr><td>{escaped(each.worker)}</td><td><span class="tag {each.severity}">{SYMBOLS[each.severity]}</span> '
        f"{escaped(each.severity)}</td><td>{each.findings:,}</td><td>{each.step:,}</td></tr>"
        for each in row.accused
    )
    head = "<tr><th>worst workers</th><th></th><th>findings</th><th>since step</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>" if rows else ""


def _steps(row: RunSummary) -> str:
    if not row.read or row.problem:
        return ""
    if row.planned_train_steps is None:
        return f"{row.train_steps:,}"
    share = f'<br><progress max="{row.planned_train_steps}" value="{row.train_steps}" aria-label="progress"></progress>'
    return f"{row.train_steps:,} of {row.planned_train_steps:,}{share if row.live else ''}"


def _pages(links: Links, query: str, sort: str, page: int, pages: int) -> str:
    if pages == 1:
        return ""
    near = [(at, words) for at, words in ((page - 1, "previous"), (page + 1, "next")) if 1 <= at <= pages]
    found = "".join(
        f'<a href="{escaped(links.runs(q=query, sort=sort, page=at))}" rel="{words[:4]}">{words}</a>'
        for at, words in near
    )
    return f'<p class="choices">page {page} of {pages} {found}</p>'


def is_column(sort: str) -> bool:
    """Whether rows can be sorted so."""
    return not sort or sort.removeprefix("-") in SORTS
