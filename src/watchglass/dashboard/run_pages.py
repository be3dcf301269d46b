"""The pages of a run, one function each, out of the sections of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from watchglass.dashboard.shell import Links
from watchglass.dashboard.watched_run import Published
from watchglass.errors import UnknownNameError
from watchglass.records import count
from watchglass.view import (
    GRADIENT_NORM,
    LAYER_FIELDS,
    diagnoses_html,
    escaped,
    facts_html,
    figures_html,
    figures_of_time,
    findings_html,
    layer_grid,
    run_figures,
    scalar_figures,
    scalars_html,
    section,
    settings_html,
    statuses_html,
    summary_html,
    time_tables_html,
)


class Shown(NamedTuple):
    """What a page is made of."""

    published: Published
    links: Links
    identifier: str
    query: Mapping[str, str]
    live: bool = False  #: Whether the job goes on.
    acts: bool = False  #: Whether the page may ask something of a job.


class RunPage(NamedTuple):
    """A page of a run.

    Attributes:
        title: Its title in the bar.
        draw: Its content as HTML.
        parts: What it shows of :data:`~watchglass.dashboard.watched_run.PARTS`.
        choices: Names of the query that change its content.
    """

    title: str
    draw: Callable[[Shown], str]
    parts: str
    choices: tuple[str, ...] = ()


def _overview(shown: Shown) -> str:
    run, verdict = shown.published.run, shown.published.verdict
    figures = figures_html(run_figures(run, verdict.findings, layers=False))
    return "".join(
        (
            summary_html(run, verdict, live=shown.live),
            *section("Diagnoses", diagnoses_html(verdict)),
            *section("Figures", figures or [_empty("No training step was recorded yet.")]),
            *section("Findings", [findings_html(verdict.findings)] if verdict.findings else []),
            *section("Rules", [_rules(shown)]),
        )
    )


def _rules(shown: Shown) -> str:
    statuses = shown.published.verdict.statuses
    if not statuses:
        return _empty("No rule was evaluated.", f"watchglass check {shown.published.run.location}")
    counts = Counter(each.status.value for each in statuses)
    words = ", ".join(f"{amount} {status}" for status, amount in counts.most_common())
    summary = f"{count(len(statuses), 'rule')}: {escaped(words)}"
    return f"<details><summary>{summary}</summary>{statuses_html(statuses)}</details>"


def _layers(shown: Shown) -> str:
    name = shown.query.get("field", GRADIENT_NORM)
    if name not in LAYER_FIELDS:
        raise UnknownNameError(f"field must be one of {', '.join(LAYER_FIELDS)} but got {name!r}")
    choices = "".join(
        f'<a href="{escaped(shown.links.run(shown.identifier, "layers", field=each))}"'
        f"{' aria-current=true' if each == name else ''}>{escaped(field.name)}</a>"
        for each, field in LAYER_FIELDS.items()
    )
    field, grid = LAYER_FIELDS[name], layer_grid(shown.published.run, name)
    what = f"{field.role.value}s"
    empty = _empty(f"{what.capitalize()} were not recorded.", f"watchglass run --collection {what} SCRIPT")
    drawn = figures_html([(field.caption, grid)]) if grid is not None else [empty]
    return "".join(section("Layers", [f'<p class="choices">{choices}</p>', *drawn]))


def _scalars(shown: Shown) -> str:
    parts = scalars_html(*scalar_figures(shown.published.run))
    empty = _empty("The script saved no numbers.", 'watchglass.save_scalar("reward", value)')
    return "".join(section("Saved by the script", parts or [empty]))


def _time(shown: Shown) -> str:
    run = shown.published.run
    figures = figures_html(figures_of_time(run, shown.published.verdict.findings))
    empty = _empty("Times were not recorded; without --no-profiler they are.", "watchglass run SCRIPT")
    asks = [_profile(shown)] if shown.acts and shown.live else []
    return "".join(section("Time and machine", [*asks, *([*figures, *time_tables_html(run)] or [empty])]))


def _profile(shown: Shown) -> str:
    """Asks for the operators of some steps; they appear on this page."""
    return (
        f'<form class="action" method="post" action="{shown.links.run(shown.identifier, "profile")}">'
        '<label>Profile the operators of the next <input type="number" name="steps" value="5" min="1" max="1000" '
        "required> training steps</label> <button>Profile</button> <output></output></form>"
    )


def _settings(shown: Shown) -> str:
    run, verdict = shown.published.run, shown.published.verdict
    return "".join((*section("Settings", settings_html(run)), *section("Run", [facts_html(run, verdict)])))


def _empty(sentence: str, command: str = "") -> str:
    """Why nothing is there, and what fills it."""
    return f'<p class="empty">{escaped(sentence)}{f" <code>{escaped(command)}</code>" if command else ""}</p>'


#: The pages of a run by their names in addresses, in the order of the bar.
RUN_PAGES = {
    "": RunPage("Run", _overview, "steps findings rules"),
    "layers": RunPage("Layers", _layers, "steps", ("field",)),
    "scalars": RunPage("Scalars", _scalars, "steps"),
    "time": RunPage("Time", _time, "steps samples findings"),
    "settings": RunPage("Settings", _settings, "steps findings rules"),
}
