"""The time and the machine of a run, as blocks: of its report, of its live page, and of the profiler's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from watchglass.records import Finding, Severity, Status, Verdict, count, facts
from watchglass.run import MetricLevel, levels_of
from watchglass.view.blocks import Block, Disclosure, Figure, Inline, Items, Pairs, Section, Span, Text, TextTable
from watchglass.view.formats import RuleText
from watchglass.view.pictures.records import Picture
from watchglass.view.series import Steps
from watchglass.view.text import command, duration, exact_duration, percent, quantity
from watchglass.view.time_figures import durations_figure, machine_figure, phases_figure
from watchglass.view.time_numbers import (
    PERCENTILES,
    duration_numbers,
    job_numbers,
    known_numbers,
    phase_numbers,
    rule_numbers,
)
from watchglass.view.time_tables import code_tables
from watchglass.view.usage import far_longer_steps
from watchglass.view.verdict_sentences import also_in, over_models

if TYPE_CHECKING:
    from watchglass.run import Run

#: What rules on time and machine are about, each with these rules.
_SUBJECTS = (
    ("The run as a whole", ("OverallFrameworkMetrics", "OverallSystemUsage", "MaxInitializationTime", "Hang")),
    ("Data loading", ("InputBound", "TooManyDataWorkers")),
    ("The script between data, model and optimizer", ("ScriptBound", "SynchronousCopy")),
    ("Single steps and pauses", ("StepOutlier",)), ("Evaluations", ("EvaluationBound",)),
    ("GPU utilization", ("LowGPUUtilization",)), ("Batch size", ("BatchSize", "GradientNoise", "UpdateBound")),
    ("CPU bottlenecks", ("CPUBottleneck",)), ("I/O bottlenecks", ("IOBottleneck",)),
    ("Load balancing", ("LoadBalancing", "Straggler")),
    ("GPU memory", ("GPUMemoryIncrease", "MemoryFragmentation")), ("Memory of the processes", ("MemoryLeak",)),
)  # fmt: skip
_MOST_ROWS = 20
_MOST_MAKERS = 64


class TimePart(NamedTuple):
    """A part of what is known about the time of a run."""

    title: str
    figures: Sequence[Block]  #: What everybody looks at.
    details: Sequence[Block]  #: What a page about more than time folds.

    @property
    def blocks(self) -> Sequence[Block]:
        """All of it."""
        return [*self.figures, *self.details]


def no_texts() -> Mapping[str, RuleText]:
    """No documentation of any rule."""
    return {}


def time_blocks(
    run: Run, verdict: Verdict, rules: Callable[[], Mapping[str, RuleText]] = no_texts, steps: Steps = None
) -> list[Block]:
    """The parts of :func:`time_parts` for a section: figures first, details folded; empty if no time was recorded."""
    parts = time_parts(run, verdict, rules, steps)
    recorded = (each for part in parts[1:] for each in part.blocks)  # each run has a job
    if not any(isinstance(each, Figure | TextTable | Disclosure) for each in recorded):
        return []
    figures = [block for part in parts for block in part.figures]
    return [*figures, *(Disclosure(part.title, part.details) for part in parts if part.details)]


def time_parts(
    run: Run, verdict: Verdict, rules: Callable[[], Mapping[str, RuleText]] = no_texts, steps: Steps = None
) -> list[TimePart]:
    """What is known about the time of a run and its machines; figures have the problems that rules found as marks.

    Args:
        run: The run.
        verdict: What rules found; of those on time and machine, it may have none.
        rules: Documentation of rules by name, for those on time and machine.
        steps: Figures of training steps show only these, half-open.
    """
    # Those of the run's own rules too, on whatever they are: they belong to the same course of time.
    marked = list({each.id: each for each in problems((*run.journal.findings, *verdict.findings))}.values())
    whose = f" Shown: {run.worker().name}, one of {len(run.workers):,} workers." if len(run.workers) > 1 else ""
    phases = _drawn(
        phases_figure(run, marked, steps),
        "Each column is the mean of neighbouring steps. data: the script waits for its loader; "
        f"prepare: from the batch to the call of the model; copy: to the device, in any phase.{whose}",
    )
    durations = _drawn(
        durations_figure(run), f"Time since the end of the step before, waiting for data included.{whose}"
    )
    loaders = [*_loader_settings(run), *_loader_times(run)]
    return [
        TimePart("Training job", (), [_job_table(job_numbers(run))]),
        TimePart("Phases of steps", phases, _phase_tables(phase_numbers(run))),
        TimePart("Durations of steps", durations, _duration_tables(duration_numbers(run))),
        TimePart("Machine", machine_figures(run, marked), usage_blocks(run)),
        TimePart("Bottlenecks", (), _bottlenecks(run, verdict, rules)),
        TimePart("Modules, operators, functions", (), [Disclosure(title, [each]) for title, each in code_tables(run)]),
        TimePart("Data loaders", (), loaders),
    ]


def machine_figures(run: Run, marked: Sequence[Finding] = ()) -> list[Figure]:
    """The load of each machine."""
    caption = "100 % is what the run may use; of several GPUs the mean."
    return [each for stream in run.streams for each in _drawn(machine_figure(run, stream, marked), caption)]


def usage_blocks(run: Run) -> list[Block]:
    """Percentiles of all metrics of the machines; single cores and devices are folded."""
    levels = levels_of(run)
    if not levels:
        return [Text("The machine was not sampled.", "empty")]
    several = len(run.streams) > 1
    # A table of all cores has a hundred rows on a large machine.
    whole = [each for each in levels if not each.instance or each.metric.startswith("gpu.")]
    single = [each for each in levels if each not in whole]
    folded = [Disclosure("Single cores and devices", [_usage_table(single, several)])] if single else []
    return [_usage_table(whole, several), *folded]


def problems(findings: Sequence[Finding]) -> list[Finding]:
    """Without those that only sum up."""
    return [finding for finding in findings if finding.severity is not Severity.INFO]


def folded(findings: Sequence[Finding]) -> list[tuple[Finding, str]]:
    """Findings with their sentences. What a rule found in several models, such as each fold, is one: the first."""
    groups = over_models(findings)
    return [(first, "; ".join(filter(None, (first.message, also_in(others))))) for first, *others in groups]


def _drawn(picture: Picture | None, caption: str) -> list[Figure]:
    return [] if picture is None else [Figure(picture, caption)]


def _job_table(job: Mapping[str, Any]) -> TextTable:
    whole = job["seconds"]

    def time(seconds: float | None) -> str:
        if seconds is None:
            return "unknown"
        return f"{duration(seconds)}, {percent(seconds / whole)}" if whole > 0 else duration(seconds)

    rows: list[tuple[str, Inline]] = [
        ("Command", Span(" ".join(job["command"]), "code")),
        ("Begin and end, UTC", f"{_second(job['begin'])} to {_second(job['end'])}"),
        ("Length", duration(whole)),
        ("Initialization", f"{time(job['initialization_s'])}, up to the first step"),
        ("Training loop", time(job["training_loop_s"])),
        ("of it training", f"{time(job['training_s'])}, {count(job['training_steps'], 'step')}"),
        ("of it evaluation", f"{time(job['evaluation_s'])}, {count(job['evaluation_steps'], 'step')}"),
        ("Finalization", f"{time(job['finalization_s'])}, after the last step"),
    ]
    if len(job["workers"]) > 1:
        rows.append(("Workers", f"{len(job['workers'])}; times are those of {job['workers'][0]}"))
    return TextTable((), rows)


def _second(time: str | None) -> str:
    return "unknown" if time is None else time.replace("T", " ")[:19]


def _phase_tables(phases: Mapping[str, Any]) -> list[Block]:
    if not phases:
        return [Text("The phases of steps were not recorded.", "empty")]
    names = list(next(iter(phases.values()))["shares"])
    rows = [
        (
            mode,
            f"{found['steps']:,}",
            duration(found["seconds"]) + _far_longer(found),
            exact_duration(found["typical"]["mean"]),
            *(percent(found["typical"]["shares"].get(name, 0.0)) for name in names),
        )
        for mode, found in phases.items()
    ]
    return [TextTable(("steps", "number", "in total", "mean", *names), rows)]


def _far_longer(phases: Mapping[str, Any]) -> str:
    typical = phases["typical"]
    spent = phases["seconds"] - typical["steps"] * typical["mean"]
    return far_longer_steps(phases["steps"] - typical["steps"], spent, phases["seconds"])


def _duration_tables(durations: Mapping[str, Any]) -> list[TextTable]:
    rows = [
        (
            mode, f"{found['steps']:,}", *(exact_duration(found[key]) for key in ("mean", *PERCENTILES)),
            f"{found['longest_step']:,}",
        )
        for mode, found in durations.items()
    ]  # fmt: skip
    head = ("steps", "number", "mean", "longest", "99th percentile", "95th", "median", "shortest", "longest at step")
    return [TextTable(head, rows)] if rows else []


def _usage_table(levels: Sequence[MetricLevel], several: bool) -> TextTable:
    def name(each: MetricLevel) -> str:
        return " ".join(filter(None, (f"{each.stream}:" if several else "", each.metric, each.instance)))

    head = ("metric", "mean", "maximum", "99th percentile", "95th", "median", "minimum")
    rows = [
        (name(each), *(quantity(getattr(each, key), each.unit) for key in ("mean", *PERCENTILES))) for each in levels
    ]
    return TextTable(head, rows)


def _bottlenecks(run: Run, verdict: Verdict, rules: Callable[[], Mapping[str, RuleText]]) -> list[Block]:
    """What rules on time and machine say by subject, also that they could not judge it; and what each looks for."""
    known = {name for _, names in _SUBJECTS for name in names}
    statuses = [status for status in verdict.statuses if status.rule in known]
    if not statuses:
        asked = Span(command("report", "--profiler", run.location), "code")
        return [Text(("Rules on time and machine were not evaluated.", asked), "empty")]
    texts = rules()
    judged = {each.rule: rule_numbers(each, verdict.findings, texts.get(each.rule)) for each in statuses}
    found = folded([each for each in verdict.findings if each.rule in known])
    subjects = [
        (title, _subject([judged[name] for name in names if name in judged], found)) for title, names in _SUBJECTS
    ]
    rows = [
        (
            rule["rule"], rule["looks_for"], f"{rule['times_triggered']:,}" if rule["times_triggered"] else "",
            ", ".join(f"{name} {value}" for name, value in rule["parameters"].items()),
        )
        for rule in judged.values()
    ]  # fmt: skip
    table = TextTable(("rule", "looks for", "times found", "parameters"), rows)
    return [Pairs(subjects), Disclosure("What each rule looks for, and its parameters", [table])]


def _subject(rules: Sequence[Mapping[str, Any]], findings: Sequence[tuple[Finding, str]]) -> list[Block]:
    names = {rule["rule"] for rule in rules}
    own = [(finding, message) for finding, message in findings if finding.rule in names]
    blocks: list[Block] = []
    for finding, message in own[:_MOST_ROWS]:
        tag = Span(finding.severity.value, f"tag {finding.severity.value}")
        blocks += [Text((tag, f"{_whose(finding)}: {message}")), Items(finding.what_to_try)]
    blocks += [Text(f"and {count(len(own) - _MOST_ROWS, 'further finding')}")] if len(own) > _MOST_ROWS else []
    blocks += [
        Text(f"{rule['rule']}: not judged, {rule['reason'] or rule['status']}")
        for rule in rules
        if rule["status"] not in (Status.NO_ISSUES_FOUND.value, Status.ISSUES_FOUND.value)
    ]
    # An info is no issue: beside it, "no issues found" would read as its opposite.
    spoken = {finding.rule for finding, _ in own}
    silent = [rule["rule"] for rule in rules if rule["status"] == Status.NO_ISSUES_FOUND.value]
    clean = [name for name in silent if name not in spoken]
    return [*blocks, *([Text(f"{', '.join(clean)}: no issues found")] if clean else [])]


def _whose(finding: Finding) -> str:
    """The rule, and the worker unless it is the first one or all."""
    return finding.rule if finding.worker in ("", "worker_0") else f"{finding.rule} on {finding.worker}"


def _loader_times(run: Run) -> list[Section]:
    """The mean times of a batch by the process that made it."""
    makers = [known_numbers(asdict(row)) for row in run.loader_workers().rows]
    if not makers:
        return []
    rows = [
        (
            row["loader"], "the process that trains" if row["loader_worker"] < 0 else f"{row['loader_worker']}",
            f"{row['batches']:,}",
            *(
                exact_duration(row[name]) if name in row else "unknown"
                for name in ("mean_fetch_s", "mean_collate_s", "mean_queued_s", "mean_transfer_s")
            ),
        )
        for row in makers[:_MOST_MAKERS]
    ]  # fmt: skip
    head = ("loader", "worker", "batches", "fetch", "collate", "in the queue", "of it the script waited")
    return [Section("Times of a batch, on average", [TextTable(head, rows)], level=3)]


def _loader_settings(run: Run) -> list[TextTable]:
    loaders = [loader.to_data() for loader in run.facts(facts.LoaderSettings)]
    if not loaders:
        return []
    keys = list(dict.fromkeys(key for loader in loaders for key in loader))
    rows = [tuple(str(loader.get(key, "")) for key in keys) for loader in loaders[:_MOST_ROWS]]
    return [TextTable([key.replace("_", " ") for key in keys], rows)]
