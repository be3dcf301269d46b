"""Several runs side by side: verdicts, curves, settings that differ, and where two of them part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchglass.dashboard.page_parts import Choices, chosen_steps, empty
from watchglass.dashboard.shell import Links
from watchglass.dashboard.watched_run import Published
from watchglass.diagnose import RunSummary
from watchglass.errors import UnknownNameError
from watchglass.view import (
    BY,
    Block,
    Compared,
    Section,
    Span,
    Text,
    comparable,
    comparison_blocks,
    live_tone,
    settings_of,
)

#: Most runs of a page, and most numbers to choose from.
MOST_RUNS, _METRICS = 10, 40


def compare_page(
    rows: Sequence[RunSummary], published: Mapping[str, Published], links: Links, query: Mapping[str, str]
) -> Sequence[Block]:
    """The page.

    Args:
        rows: The runs.
        published: What was read of each, by identifier.
        links: Addresses.
        query: ``metric``, ``by`` and ``steps``, as a person has chosen them.

    Raises:
        UnknownNameError: There is no such number or axis.
        InvalidValueError: The steps are no range.
    """
    if len(rows) < 2:
        sentence = "Choose two runs or more in the table of runs, and press Compare."
        return [Section("Compare", [empty(sentence), Text(Span("all runs", "", links.runs()))])]
    runs = {row.listed.name: published[row.identifier].run for row in rows}
    known, by, steps = comparable(runs), query.get("by") or "step", chosen_steps(query)
    metric = query.get("metric") or ("loss" if "loss" in known or not known else known[0])
    if by not in BY or (known and metric not in known):
        raise UnknownNameError(f"by must be one of {', '.join(BY)}, and metric one that was recorded")
    identifiers = [row.identifier for row in rows]

    def address(**other: str) -> str:
        return links.compare(identifiers, **{"metric": metric, "by": by, "steps": query.get("steps", ""), **other})

    compared = [_compared(row, published[row.identifier], links) for row in rows]
    choices = [
        Choices([(address(metric=each), each, each == metric) for each in known[:_METRICS]]),
        Choices([(address(by=each), f"by {each}", each == by) for each in BY]),
    ]
    return comparison_blocks(compared, metric, by, steps, choices)


def _compared(row: RunSummary, published: Published, links: Links) -> Compared:
    run, verdict = published.run, published.verdict

    def tensor_address(name: str, step: int) -> str:
        return links.run(row.identifier, "tensor", name=name, step=step)

    return Compared(
        row.listed.name, verdict, settings_of(run), run, live_tone(verdict), published.courses,
        links.run(row.identifier), tensor_address,
    )  # fmt: skip
