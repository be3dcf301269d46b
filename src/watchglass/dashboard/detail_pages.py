"""Pages about parts of a run: one tensor, the modules at a step, rules, machines, workers."""

from __future__ import annotations

from collections.abc import Sequence

from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.dashboard.page_parts import ActionForm, Choices, Shown, StepForm, empty
from watchglass.diagnose import rule_guide
from watchglass.errors import UnknownNameError
from watchglass.records import Role, RuleStatus, Status, count
from watchglass.view import (
    WORKER_FIELDS,
    Block,
    Disclosure,
    Figure,
    Items,
    Section,
    Span,
    Text,
    TextTable,
    compared_workers,
    distribution_figure,
    first_bad,
    histogram_figure,
    instance_grids,
    layer_names,
    machine_figures,
    modules_table,
    number,
    raw_values,
    usage_blocks,
)

#: Most tensors that a page links to.
_LINKS = 1000
#: Statuses of rules that have judged something.
_EVALUATED = (Status.ISSUES_FOUND, Status.NO_ISSUES_FOUND, Status.IN_PROGRESS)
_REDUCTIONS = ("mean", "std", "min", "max", "l2", "abs_mean", "zero_ratio", "nonfinite")


def tensor_page(shown: Shown) -> Sequence[Block]:
    """One tensor over time, at one step, and its values."""
    run, name = shown.published.run, shown.query.get("name", "")
    names = run.tensor_names()
    if not name:
        if not names:
            return [Section("Tensors", [empty("No tensor was captured.", "watchglass run SCRIPT")])]
        roles = [role for role in Role if run.tensor_names(role=role)]
        chosen = shown.query.get("role") or roles[0].value
        if chosen not in {role.value for role in roles}:
            raise UnknownNameError(f"role must be one of {', '.join(roles)} but got {chosen!r:.50}")
        links = [
            (shown.links.run(shown.identifier, "tensor", role=role.value), role.value, role.value == chosen)
            for role in roles
        ]
        return [Section("Tensors", [Choices(links), _tensor_links(shown, run.tensor_names(role=Role(chosen)))])]
    info = run.tensor(name).info  # refuses a wrong name
    owner = f" of {info.module} ({info.module_type})" if info.module else ""
    about = f"{info.role.value}{owner}, {info.dtype} {list(info.shape) if info.shape else ''}"
    steps = run.tensor(name).steps()
    blocks: list[Block] = [Text(about, "path")]
    found = distribution_figure(run, name, shown.published.courses, shown.steps)
    if found is not None:
        blocks.append(Figure(found.picture, found.caption))
    if not steps:
        return [Section(name, [*blocks, empty("Nothing of it was captured at a training step.")])]
    wanted = shown.number("step")
    step = steps[-1] if wanted is None else min(steps, key=lambda each: abs(each - wanted))
    address = shown.links.run(shown.identifier, "tensor")
    blocks.append(StepForm(address, "step", step, f"of {steps[0]:,} to {steps[-1]:,}", (("name", name),)))
    try:
        histogram = histogram_figure(run, name, step)
        caption = "Bins are halves of powers of two; zeros and what is not finite are in none of them."
        none = empty(f"None of its elements at step {step:,} is finite and other than zero.")
        blocks.append(Figure(histogram, caption) if histogram is not None else none)
    except UnknownNameError as error:
        if info.shape:
            blocks.append(empty(str(error)))
    rows = [(each, number(value)) for each in _REDUCTIONS if (value := _reduction(shown, name, step, each)) is not None]
    if rows:
        blocks.append(Section(f"Reductions at step {step:,}", [TextTable(("reduction", "value"), rows)], level=3))
    image, table, about = raw_values(run, name, step)
    values: list[Block] = [Text(about)] if table is not None else [_not_saved(about, info.role)]
    values += [Figure(image)] if image is not None else []
    values += [table] if table is not None and info.shape else []
    if info.shape:
        blocks.append(Section(f"Values at step {step:,}", values, level=3))
    related = [each for each in names if run.tensor(each).info.module == info.module and each != name and info.module]
    beside = [Section("Of the same module", [_tensor_links(shown, related)], level=3)] if related else []
    return [Section(name, [*blocks, *beside])]


def _not_saved(about: str, role: Role) -> Text:
    collection = next(name for name, each in BUILT_IN_COLLECTIONS.items() if each.roles == (role,))
    why = "" if about.startswith("no value") else f": {about}"
    return empty(
        f"Its values were not saved as a whole at this step{why}.", f"watchglass run --save-raw {collection} SCRIPT"
    )


def _reduction(shown: Shown, name: str, step: int, which: str) -> float | None:
    try:
        return shown.published.run.tensor(name).reduction(step, which)
    except UnknownNameError:
        return None


def _tensor_links(shown: Shown, names: Sequence[str]) -> Block:
    part = names[:_LINKS]
    links = [Span(name, "code", shown.links.run(shown.identifier, "tensor", name=name)) for name in part]
    rest = [f"and {len(names) - len(part):,} more"] if len(part) < len(names) else []
    return Items([*(Text(link) for link in links), *rest])


def modules_page(shown: Shown) -> Sequence[Block]:
    """The modules in the order of the model at one step, and the first bad one with its cure."""
    run = shown.published.run
    bad = first_bad(run, shown.published.verdict)
    blocks: list[Block] = []
    if bad is not None:
        advice: list[Block] = [Text("What to try"), Items(list(bad.cures))] if bad.cures else []
        heading = f"First bad module: {bad.module or '(the model)'}, step {bad.step:,}"
        blocks.append(Section(heading, [*map(Text, bad.sentences), *advice], level=3, tone="error"))
    known = shown.published.courses.of(run, layer_names(run, Role.OUTPUT), "std").steps
    if not len(known):
        command = "watchglass run --collection outputs SCRIPT"
        return [Section("Modules", [*blocks, empty("Outputs of modules were not recorded.", command)])]
    wanted = shown.number("step")
    if wanted is None:
        wanted = bad.step if bad is not None else int(known[-1])
    later = known[known >= wanted]
    step = int(later[0] if len(later) else known[-1])
    address = shown.links.run(shown.identifier, "modules")
    blocks.append(
        StepForm(address, "step", step, f"of {known[0]:,} to {known[-1]:,}; outputs were captured at {len(known):,}")
    )
    if bad is not None and step != bad.step:
        blocks.append(Text(f"Outputs were not captured at step {bad.step:,}; shown is step {step:,}.", "small"))
    marked = None if bad is None else bad.module if step == bad.step else ""
    table = modules_table(run, step, marked)
    blocks += [table] if table is not None else [empty(f"No output was captured at step {step:,}.")]
    return [Section("Modules", blocks)]


def rules_page(shown: Shown) -> Sequence[Block]:
    """Each rule: status, why it is silent, what it found, parameters, and a replay with others."""
    verdict = shown.published.verdict
    if not verdict.statuses:
        command = f"watchglass check {shown.published.run.location}"
        return [Section("Rules", [empty("No rule was evaluated.", command)])]
    found = {each.rule for each in verdict.findings}
    loud = [each for each in verdict.statuses if each.rule in found or each.status is Status.ERROR]
    rest = [each for each in verdict.statuses if each not in loud]
    quiet = [each for each in rest if each.status is not Status.IN_PROGRESS and each.status in _EVALUATED]
    going_on = [each for each in rest if each.status is Status.IN_PROGRESS]
    silent = [each for each in rest if each.status not in _EVALUATED]
    blocks: list[Block] = [_rule(shown, each) for each in loud]
    kinds = (("found nothing", quiet), ("found nothing so far", going_on), ("could not be evaluated", silent))
    for title, statuses in kinds:
        if statuses:
            rows = [_rule(shown, each) for each in statuses]
            blocks.append(Disclosure(f"{count(len(statuses), 'rule')} {title}", rows))
    return [Section("Rules", blocks)]


def _rule(shown: Shown, status: RuleStatus) -> Block:
    name = status.rule
    found = [each for each in shown.published.verdict.findings if each.rule == name]
    lines: list[Block] = [Text(status.reason)] if status.reason else []
    if found:
        first, last = min(each.step for each in found), max(each.last_step for each in found)
        lines.append(
            Text(f"{count(len(found), 'finding')}, first at step {first:,}, last at {last:,}: {found[0].message}")
        )
    guide = rule_guide(name)
    if guide is not None:
        more: list[Block] = [Text(guide.fires_when)] if guide.fires_when else []
        if guide.parameters:
            rows = [
                (each, str(status.parameters.get(each, default)), default, help_)
                for each, default, help_ in guide.parameters
            ]
            more.append(TextTable(("parameter", "used", "default", "what it does"), rows))
        lines.append(Disclosure("When it fires, and its parameters", more))
        if shown.acts:
            lines.append(_replay(shown, status, guide.parameters))
    elif status.parameters:
        used = [(each, str(value)) for each, value in status.parameters.items()]
        lines.append(TextTable(("parameter that is not as by default", "used"), used))
    tone = max((each.severity for each in found), key=lambda each: each.rank).value if found else ""
    return Section(f"{name}: {status.status.value}", lines, level=3, tone=tone)


def _replay(shown: Shown, status: RuleStatus, parameters: Sequence[tuple[str, str, str]]) -> Block:
    """Evaluates the rule with other parameters, in a separate process; nothing is written."""
    used = [f"{each}={value}" for each, value in status.parameters.items()]
    first = ", ".join(used) or (f"{parameters[0][0]}={parameters[0][1]}" if parameters else "")
    address = shown.links.run(shown.identifier, "replay")
    return ActionForm(address, "Replay", "Evaluate it again with", "parameters", first, (("rule", status.rule),))


def machine_page(shown: Shown) -> Sequence[Block]:
    """Load of each machine, of each core and GPU."""
    run = shown.published.run
    blocks: list[Block] = [*machine_figures(run, shown.published.verdict.findings)]
    for stream in run.streams:
        blocks += [Figure(grid, "One row for each; bright cells are busy.") for grid in instance_grids(run, stream)]
    if blocks:
        blocks.append(Disclosure("All metrics", usage_blocks(run)))
    return [
        Section(
            "Machine",
            blocks or [empty("No metrics were sampled; without --no-profiler they are.", "watchglass run SCRIPT")],
        )
    ]


def workers_page(shown: Shown) -> Sequence[Block]:
    """Workers by time, loss or gradient norm, those that differ most first."""
    run, field = shown.published.run, shown.query.get("field", "step")
    if field not in WORKER_FIELDS:
        raise UnknownNameError(f"field must be one of {', '.join(WORKER_FIELDS)} but got {field!r}")
    links = [
        (
            shown.links.run(shown.identifier, "workers", field=each, steps=shown.query.get("steps", "")),
            title,
            each == field,
        )
        for each, (title, _) in WORKER_FIELDS.items()
    ]
    if len(run.workers) < 2:
        return [
            Section(
                "Workers",
                [
                    empty(
                        "The run has one worker.", "torchrun --nproc-per-node 2 -m watchglass run --run-dir RUN SCRIPT"
                    )
                ],
            )
        ]
    found = compared_workers(run, field, shown.steps)
    if found is None:
        return [
            Section("Workers", [Choices(links), empty(f"Fewer than two workers recorded a {WORKER_FIELDS[field][0]}.")])
        ]
    caption = "The line is the median of all workers, the band reaches from the least to the greatest."
    worst = "One row per worker, the one that differs most from the others at the top."
    blocks = [Choices(links), found.table, Figure(found.everyone, caption), Figure(found.worst, worst)]
    return [Section(f"{len(run.workers):,} workers", blocks)]
