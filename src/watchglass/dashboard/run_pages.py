"""The pages of a run, one function each, out of the sections of the report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from watchglass.dashboard.acting import ON_OFF
from watchglass.dashboard.detail_pages import machine_page, modules_page, rules_page, tensor_page, workers_page
from watchglass.dashboard.page_parts import ActionForm, Choices, RunPage, Shown, empty
from watchglass.diagnose import rule_texts
from watchglass.errors import UnknownNameError
from watchglass.records import facts
from watchglass.run import Run
from watchglass.view import (
    GRADIENT_NORM,
    LAYER_FIELDS,
    Block,
    Disclosure,
    Figure,
    Items,
    Section,
    Span,
    Text,
    captioned,
    diagnosis_blocks,
    fact_blocks,
    finding_blocks,
    folded_statuses,
    joined_sentence,
    layer_depths,
    layer_grid,
    run_figures,
    scalar_blocks,
    scalar_figures,
    setting_blocks,
    story_figure,
    summary_block,
    time_blocks,
)

#: Steps over which training numbers may be smoothed.
_SPANS = (10, 100, 1000)


_STORY = "All lanes have one axis of training steps."
_CAUSES = (
    " The score of a cause at a step is by the findings first seen by then, and 0 while the cause is not among the "
    "likely ones."
)

_AGAINST_MEDIAN = "Dark cells are far below the median of their row, bright cells far above it."


def _overview(shown: Shown) -> Sequence[Block]:
    run, verdict = shown.published.run, shown.published.verdict
    story = story_figure(run, verdict, shown.published.causes, shown.steps)
    smooth = float(shown.number("smooth") or 0)
    figures = captioned(run_figures(run, verdict.findings, layers=False, steps=shown.steps, smooth=smooth))
    told = Figure(story, _STORY + (_CAUSES if shown.published.causes else "")) if story is not None else None
    return [
        summary_block(run, verdict, live=shown.live),
        Section("Diagnoses", diagnosis_blocks(verdict)),
        Section("Story", [told] if told is not None else [empty("No training step was recorded yet.")]),
        Section("Figures", [_smoothings(shown, ""), *figures] if figures else []),
        Section("Findings", finding_blocks(verdict.findings)),
        Section("Rules", _rules(shown)),
        *([Section("Job", _job(shown))] if shown.acts and shown.live else []),
    ]


def _job(shown: Shown) -> Sequence[Block]:
    """What a person can ask of a job that goes on."""
    links, run = shown.links, shown.identifier
    settings = links.run(run, "settings")
    every = "Take a sample of the machine every so many seconds"
    # A setting without a change is that of the start; the recorded rows show it.
    job = shown.published.run
    changed = job.facts(facts.ProfilerChanged)
    timed = next((each.module_times for each in reversed(changed) if each.module_times is not None), None)
    sampled = next((each.enabled for each in reversed(changed) if each.enabled is not None), bool(job.streams))
    if timed is None:
        timed = len(job.module_times()) > 0
    switches = [
        ("enabled", "Sample the machine, and profile when asked", ON_OFF[sampled]),
        ("module_times", "Record the time of each module, in some steps", ON_OFF[timed]),
    ]
    return [
        ActionForm(
            links.run(run, "stop"),
            "Stop the training",
            confirm="End it after the next steps, at the same step in all workers",
        ),
        ActionForm(settings, "Change", every, "sample_interval_s", _seconds_between_samples(job)),
        *(ActionForm(settings, "Change", about, name, value, options=ON_OFF) for name, about, value in switches),
    ]


def _seconds_between_samples(job: Run) -> str:
    """What was asked for last, or else what the samples show; "" without any."""
    asked = [each.sample_interval_s for each in job.facts(facts.ProfilerChanged) if each.sample_interval_s is not None]
    if asked:
        return f"{asked[-1]:g}"
    try:
        times = job.samples("cpu.utilization").time
    except UnknownNameError:
        return ""
    seconds = np.diff(times) / np.timedelta64(1, "s")
    return f"{float(np.median(seconds)):.1g}" if len(seconds) else ""


def _rules(shown: Shown) -> Sequence[Block]:
    found = folded_statuses(shown.published.verdict.statuses)
    return found or [empty("No rule was evaluated.", f"watchglass check {shown.published.run.location}")]


def _layers(shown: Shown) -> Sequence[Block]:
    name = shown.query.get("field", GRADIENT_NORM)
    if name not in LAYER_FIELDS:
        raise UnknownNameError(f"field must be one of {', '.join(LAYER_FIELDS)} but got {name!r}")
    relative = shown.query.get("scale") == "relative"
    depth, within, opened = shown.number("depth") or None, shown.query.get("within", ""), shown.opened
    chosen = {
        "field": name, "steps": shown.query.get("steps", ""), "scale": "relative" if relative else "",
        "depth": depth, "within": within, "open": opened if depth is not None else (),
    }  # fmt: skip

    def address(**other: object) -> str:
        return shown.links.run(shown.identifier, "layers", **{**chosen, **other})

    fields = [(address(field=each), field.name, each == name) for each, field in LAYER_FIELDS.items()]
    scales = [
        (address(scale=""), "absolute", not relative),
        (address(scale="relative"), "against the row's own median", relative),
    ]
    run, field = shown.published.run, LAYER_FIELDS[name]
    grid = layer_grid(
        run, name, shown.published.courses, shown.steps, relative=relative, findings=shown.published.verdict.findings,
        depth=depth, within=within, opened=opened,
    )  # fmt: skip
    if grid is None:
        what, why = f"{field.role.value}s", f"; {field.missing}" if field.missing else ""
        called = field.name if field.missing else what
        command = f"watchglass run --collection {field.collection or what} SCRIPT"
        missing = empty(f"{called.capitalize()} were not recorded{why}.", command)
        return [Section("Layers", [Choices(fields), missing])]
    caption = f"{field.caption.partition('. ')[0]}. {_AGAINST_MEDIAN}" if relative else field.caption
    caption += " Outlined: findings about the tensor." if grid.boxes else ""
    caption += f" {joined_sentence(field, relative=relative)}" if depth is not None else ""
    prefix = field.tensor_prefix

    def target(row: str) -> str:
        if run.worker().has(prefix + row):
            return shown.links.run(shown.identifier, "tensor", name=prefix + row)
        return address(within=row, depth=None)

    def inline(row: str) -> Text:
        link = Span(row, "code", target(row))
        if depth is None or run.worker().has(prefix + row):
            return Text(link)
        return Text((link, Span("unfold", "", address(open=[*opened, row]))))

    links = Disclosure(
        "Tensors of these rows" if depth is None else "Modules of these rows", [Items([*map(inline, grid.rows)])]
    )
    folds = [(address(depth=None), "each tensor", depth is None)]
    folds += [
        (address(depth=each), f"modules at depth {each}", each == depth) for each in layer_depths(run, field, within)
    ]
    inside = [(address(within=""), "the whole model", False), (address(), f"within {within}", True)] if within else []
    choices = [Choices(each) for each in (fields, scales, folds, inside) if len(each) > 1]
    if depth is not None and opened:
        choices.append(Choices([(address(open=_without(opened, each)), f"fold {each}", False) for each in opened]))
    return [Section("Layers", [*choices, Figure(grid, caption), links])]


def _without(opened: Sequence[str], module: str) -> list[str]:
    """The open modules without one and those in it."""
    return [each for each in opened if each != module and not each.startswith(f"{module}.")]


def _scalars(shown: Shown) -> Sequence[Block]:
    smooth = float(shown.number("smooth") or 0)
    blocks = scalar_blocks(*scalar_figures(shown.published.run, shown.steps, smooth))
    missing = empty("The script saved no numbers.", 'watchglass.save_scalar("reward", value)')
    return [Section("Saved by the script", [_smoothings(shown, "scalars"), *blocks] if blocks else [missing])]


def _smoothings(shown: Shown, page: str) -> Block:
    """Chooses over how many steps training numbers are smoothed."""
    now = shown.number("smooth") or 0
    spans = sorted({0, *_SPANS, now})
    steps = shown.query.get("steps", "")
    return Choices(
        [
            (
                shown.links.run(shown.identifier, page, smooth=span or None, steps=steps),
                f"smoothed over {span} steps" if span else "as recorded",
                span == now,
            )
            for span in spans
        ]
    )


def _time(shown: Shown) -> Sequence[Block]:
    run = shown.published.run
    verdict = shown.published.verdict
    blocks = time_blocks(run, verdict, partial(rule_texts, verdict), shown.steps)
    missing = empty("Times were not recorded; without --no-profiler they are.", "watchglass run SCRIPT")
    asks = [_profile(shown)] if shown.acts and shown.live else []
    return [Section("Time and machine", [*asks, *(blocks or [missing])])]


def _profile(shown: Shown) -> Block:
    address = shown.links.run(shown.identifier, "profile")
    return ActionForm(address, "Profile", "Profile the operators of so many of the next training steps", "steps", "5")


def _settings(shown: Shown) -> Sequence[Block]:
    run, verdict = shown.published.run, shown.published.verdict
    return [Section("Settings", setting_blocks(run)), Section("Run", fact_blocks(run, verdict))]


#: The pages of a run by their names in addresses, in the order of the bar.
RUN_PAGES = {
    "": RunPage("Run", _overview, "steps findings rules", ("steps", "smooth")),
    "layers": RunPage("Layers", _layers, "steps findings", ("field", "steps", "scale", "depth", "within", "open")),
    "tensor": RunPage("Tensors", tensor_page, "steps", ("name", "step", "steps", "role")),
    "modules": RunPage("Modules", modules_page, "steps findings", ("step",)),
    "rules": RunPage("Rules", rules_page, "findings rules"),
    "scalars": RunPage("Scalars", _scalars, "steps", ("steps", "smooth")),
    "time": RunPage("Time", _time, "steps samples findings", ("steps",)),
    "machine": RunPage("Machine", machine_page, "samples findings"),
    "workers": RunPage("Workers", workers_page, "steps", ("field", "steps")),
    "settings": RunPage("Settings", _settings, "steps findings rules"),
}
