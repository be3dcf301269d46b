"""The pages of a run, one function each, out of the sections of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchglass.dashboard.shell import Links
from watchglass.dashboard.watched_run import Published
from watchglass.errors import UnknownNameError
from watchglass.records import count
from watchglass.view import (
    GRADIENT_NORM,
    LAYER_FIELDS,
    Block,
    Disclosure,
    Figure,
    Section,
    Span,
    Text,
    block_html,
    captioned,
    diagnosis_blocks,
    escaped,
    fact_blocks,
    figures_of_time,
    finding_blocks,
    layer_grid,
    run_figures,
    scalar_blocks,
    scalar_figures,
    setting_blocks,
    status_blocks,
    summary_block,
    time_blocks,
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
        draw: Its content.
        parts: What it shows of :data:`~watchglass.dashboard.watched_run.PARTS`.
        choices: Names of the query that change its content.
    """

    title: str
    draw: Callable[[Shown], Sequence[Block]]
    parts: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choices(Block):
    """Links to the same page with another choice: address, text and whether it is the one that is shown."""

    links: Sequence[tuple[str, str, bool]]


@dataclass(frozen=True)
class ProfileForm(Block):
    """Asks for the operators of some steps; they appear on the page of times."""

    address: str


@block_html.register
def _choices(block: Choices) -> str:
    links = (
        f'<a href="{escaped(address)}"{" aria-current=true" if here else ""}>{escaped(text)}</a>'
        for address, text, here in block.links
    )
    return f'<p class="choices">{"".join(links)}</p>'


@block_html.register
def _profile_form(block: ProfileForm) -> str:
    return (
        f'<form class="action" method="post" action="{escaped(block.address)}">'
        '<label>Profile the operators of the next <input type="number" name="steps" value="5" min="1" max="1000" '
        "required> training steps</label> <button>Profile</button> <output></output></form>"
    )


def _overview(shown: Shown) -> Sequence[Block]:
    run, verdict = shown.published.run, shown.published.verdict
    figures = captioned(run_figures(run, verdict.findings, layers=False))
    return [
        summary_block(run, verdict, live=shown.live),
        Section("Diagnoses", diagnosis_blocks(verdict)),
        Section("Figures", figures or [_empty("No training step was recorded yet.")]),
        Section("Findings", finding_blocks(verdict.findings)),
        Section("Rules", [_rules(shown)]),
    ]


def _rules(shown: Shown) -> Block:
    statuses = shown.published.verdict.statuses
    if not statuses:
        return _empty("No rule was evaluated.", f"watchglass check {shown.published.run.location}")
    counts = Counter(each.status.value for each in statuses)
    words = ", ".join(f"{amount} {status}" for status, amount in counts.most_common())
    return Disclosure(f"{count(len(statuses), 'rule')}: {words}", status_blocks(statuses))


def _layers(shown: Shown) -> Sequence[Block]:
    name = shown.query.get("field", GRADIENT_NORM)
    if name not in LAYER_FIELDS:
        raise UnknownNameError(f"field must be one of {', '.join(LAYER_FIELDS)} but got {name!r}")
    links = [
        (shown.links.run(shown.identifier, "layers", field=each), field.name, each == name)
        for each, field in LAYER_FIELDS.items()
    ]
    field, grid = LAYER_FIELDS[name], layer_grid(shown.published.run, name, shown.published.courses)
    what = f"{field.role.value}s"
    empty = _empty(f"{what.capitalize()} were not recorded.", f"watchglass run --collection {what} SCRIPT")
    return [Section("Layers", [Choices(links), Figure(grid, field.caption) if grid is not None else empty])]


def _scalars(shown: Shown) -> Sequence[Block]:
    blocks = scalar_blocks(*scalar_figures(shown.published.run))
    empty = _empty("The script saved no numbers.", 'watchglass.save_scalar("reward", value)')
    return [Section("Saved by the script", blocks or [empty])]


def _time(shown: Shown) -> Sequence[Block]:
    run = shown.published.run
    blocks = [*captioned(figures_of_time(run, shown.published.verdict.findings)), *time_blocks(run)]
    empty = _empty("Times were not recorded; without --no-profiler they are.", "watchglass run SCRIPT")
    asks = [ProfileForm(shown.links.run(shown.identifier, "profile"))] if shown.acts and shown.live else []
    return [Section("Time and machine", [*asks, *(blocks or [empty])])]


def _settings(shown: Shown) -> Sequence[Block]:
    run, verdict = shown.published.run, shown.published.verdict
    return [Section("Settings", setting_blocks(run)), Section("Run", fact_blocks(run, verdict))]


def _empty(sentence: str, command: str = "") -> Text:
    """Why nothing is there, and what fills it."""
    return Text((sentence, Span(command, "code")) if command else sentence, "empty")


#: The pages of a run by their names in addresses, in the order of the bar.
RUN_PAGES = {
    "": RunPage("Run", _overview, "steps findings rules"),
    "layers": RunPage("Layers", _layers, "steps", ("field",)),
    "scalars": RunPage("Scalars", _scalars, "steps"),
    "time": RunPage("Time", _time, "steps samples findings"),
    "settings": RunPage("Settings", _settings, "steps findings rules"),
}
