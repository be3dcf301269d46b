"""Several runs side by side: verdicts, curves, settings that differ, and where two of them part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchglass.dashboard.listing import RunRow
from watchglass.dashboard.page_parts import Choices, chosen_steps, empty
from watchglass.dashboard.shell import Links
from watchglass.dashboard.watched_run import Published
from watchglass.errors import UnknownNameError
from watchglass.records import count
from watchglass.view import (
    BY,
    Block,
    Figure,
    Inline,
    Section,
    Span,
    Text,
    TextTable,
    comparable,
    compared_curves,
    differing,
    first_divergence,
    headline,
    number,
    settings_of,
)

#: Most runs of a page, and most numbers to choose from.
MOST_RUNS, _METRICS = 10, 40


def compare_page(
    rows: Sequence[RunRow], published: Mapping[str, Published], links: Links, query: Mapping[str, str]
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

    verdicts = [
        (Span(row.listed.name, "", links.run(row.identifier)), headline(published[row.identifier].verdict),
         f"{published[row.identifier].verdict.train_steps:,}")
        for row in rows
    ]  # fmt: skip
    curves = compared_curves(runs, metric, by, steps)
    shown: list[Block] = [
        Choices([(address(metric=each), each, each == metric) for each in known[:_METRICS]]),
        Choices([(address(by=each), f"by {each}", each == by) for each in BY]),
        Figure(curves, "Each run keeps its colour on all pages.")
        if curves is not None
        else empty("No run recorded it."),
    ]
    settings = [settings_of(run) for run in runs.values()]
    different = differing(settings)
    same = len({name for each in settings for name in each}) - len(different)
    changed: list[Block] = [Text(f"{count(same, 'setting is', 'settings are')} the same in all runs.", "small")]
    if different:
        cells: list[Sequence[Inline]] = [
            (Span(name, "code"), *(each.get(name, "") for each in settings)) for name in different
        ]
        changed.insert(0, TextTable(("setting", *runs), cells))
    return [
        Section("Verdicts", [TextTable(("run", "verdict", "steps"), verdicts)]),
        Section("Curves", shown),
        Section("Settings that differ", changed),
        Section("Where they part", _parting(rows, published, links)),
    ]


def _parting(rows: Sequence[RunRow], published: Mapping[str, Published], links: Links) -> Sequence[Block]:
    """Of the first run and each other one."""
    blocks: list[Block] = []
    first = published[rows[0].identifier]
    for row in rows[1:]:
        other = published[row.identifier]
        names = f"{rows[0].listed.name} and {row.listed.name}"
        try:
            found = first_divergence(first.run, other.run, (first.courses, other.courses))
        except LookupError as error:
            blocks.append(Text(f"{names}: {error}."))
            continue
        if found is None:
            blocks.append(Text(f"{names} do not differ at the steps that both have captured."))
            continue
        address = links.run(row.identifier, "tensor", name=found.tensor, step=found.step)
        values = " and ".join(map(number, found.values))
        blocks.append(
            Text(
                (
                    f"{names} first differ at step {found.step:,}, in",
                    Span(found.tensor, "code", address),
                    f"({values}).",
                )
            )
        )
    return blocks
