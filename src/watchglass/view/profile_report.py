"""The profiler's report: where the time of a run went, and what the rules on time found, as one HTML file and as JSON.

Its sections are those of the profiler report of SageMaker Debugger. The page is made from the document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import UnknownNameError
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status, count, facts
from watchglass.view.blocks import Block, Disclosure, Figure, Inline, Items, Pairs, Section, Span, Text, TextTable
from watchglass.view.html_format import page_html
from watchglass.view.json_format import finding_to_json, strict_json
from watchglass.view.pictures.records import Picture
from watchglass.view.text import command, duration, exact_duration, percent, quantity
from watchglass.view.time_figures import durations_figure, machine_figure, phases_figure
from watchglass.view.time_tables import code_tables
from watchglass.view.usage import far_longer_steps
from watchglass.view.verdict import tone
from watchglass.view.verdict_sentences import also_in, over_models

if TYPE_CHECKING:
    from watchglass.records import Verdict
    from watchglass.run import Run

#: Identifier of the form of the document; its number rises when a key changes its meaning or goes.
SCHEMA = "urn:watchglass:schema:profiler-report:1"
#: Sections about one kind of bottleneck, each with the rules that judge it.
_BOTTLENECKS = (
    ("Data loading", ("InputBound", "TooManyDataWorkers")),
    ("The script between data, model and optimizer", ("ScriptBound", "SynchronousCopy")),
    ("Single steps and pauses", ("StepOutlier",)), ("Evaluations", ("EvaluationBound",)),
    ("GPU utilization", ("LowGPUUtilization",)), ("Batch size", ("BatchSize", "UpdateBound")),
    ("CPU bottlenecks", ("CPUBottleneck",)), ("I/O bottlenecks", ("IOBottleneck",)),
    ("Load balancing", ("LoadBalancing", "Straggler")),
    ("GPU memory", ("GPUMemoryIncrease", "MemoryFragmentation")), ("Memory of the processes", ("MemoryLeak",)),
)  # fmt: skip
_PERCENTILES = {"max": 100, "p99": 99, "p95": 95, "p50": 50, "min": 0}
_MOST_ROWS = 20
_MOST_MAKERS = 64


@dataclass(frozen=True)
class ProfilerRule:
    """What the report states about a rule."""

    looks_for: str  #: What it finds, in one sentence.
    parameters: Mapping[str, Any]  #: Its parameters with their values.


def profile_document(run: Run, verdict: Verdict, rules: Mapping[str, ProfilerRule]) -> dict[str, Any]:
    """The report as plain JSON values.

    Args:
        run: The run.
        verdict: The verdict of the rules on time and system metrics.
        rules: Texts of these rules, by name.
    """
    times = run.module_times()
    return {
        "$schema": SCHEMA,
        "run": verdict.run,
        "job": _job(run),
        "system": _system(run),
        "phases": _phases(run),
        "durations": _durations(run),
        "modules": [{**asdict(row), "self_s": row.self_s} for row in times.rows],
        "operators": [
            {
                "first_step": each.steps.start, "end_step": each.steps.stop, "cost": _known(asdict(each.cost)),
                "rows": [asdict(row) for row in each.rows], "modules": [asdict(row) for row in each.modules],
                "memory": [asdict(row) for row in each.memory],
            }
            for each in run.operators()
        ],
        "python": [
            {
                "first_step": each.steps.start, "end_step": each.steps.stop, "profiler": each.profiler,
                "cost": _known(asdict(each.cost)), "rows": [asdict(row) for row in each.rows],
            }
            for each in run.python_profiles()
        ],
        "data_loaders": [loader.to_data() for loader in run.facts(facts.LoaderSettings)],
        "loader_workers": [_known(asdict(row)) for row in run.loader_workers().rows],
        "rules": [_rule(status, verdict.findings, rules) for status in verdict.statuses],
        "findings": [finding_to_json(finding) for finding in verdict.findings],
    }  # fmt: skip


def profile_json(document: Mapping[str, Any]) -> str:
    """The document as text."""
    return strict_json(dict(document))


def render_profile_report(run: Run, verdict: Verdict, document: Mapping[str, Any]) -> str:
    """The page of a document; figures are drawn from the run, with the findings of all rules as marks."""
    return page_html(f"watchglass: profile of {verdict.run}", profile_blocks(run, verdict, document))


def profile_blocks(run: Run, verdict: Verdict, document: Mapping[str, Any]) -> list[Block]:
    """The sections of the report."""
    # Those of the numeric rules too: they belong to the same course of time.
    marked = [*_problems(run.journal.findings), *_problems(verdict.findings)]
    phases = _drawn(phases_figure(run, marked), "Each column is the mean of neighbouring steps.")
    machines = [
        each
        for stream in run.streams
        for each in _drawn(
            machine_figure(run, stream, marked), "100 % is what the run may use; of several GPUs the mean."
        )
    ]
    steps = _drawn(durations_figure(run), "Time since the end of the step before, waiting for data included.")
    folded = _folded(verdict.findings)
    return [
        _head(verdict, document),
        Section("Training job", [_job_table(document["job"])]),
        Section("System usage", [*machines, *_system_tables(document["system"])]),
        Section("Framework metrics", [*phases, *_framework(run, document)]),
        Section("Rules", [_rules_table(document["rules"]), *_found(folded)]),
        Section("Step durations", [*steps, *_step_table(document)]),
        Section("Bottlenecks", [_bottlenecks(document["rules"], folded)]),
        Section("Data loaders", _loaders(document)),
    ]


def profile_parts(run: Run, verdict: Verdict) -> list[Block]:
    """What the report of a run has of this one, folded: stages, bottlenecks and loaders; its figures are apart.

    Of bottlenecks it states what the rules of ``verdict`` found, and where these are not on time, how to evaluate some.
    """
    rules = [_rule(status, verdict.findings, {}) for status in verdict.statuses]
    judged = {rule["rule"] for rule in rules} & {name for _, names in _BOTTLENECKS for name in names}
    loaders = [loader.to_data() for loader in run.facts(facts.LoaderSettings)]
    makers = [_known(asdict(row)) for row in run.loader_workers().rows]
    asked = Span(command("report", "--profiler", run.location), "code")
    unknown = Text(("Rules on time and machine were not evaluated.", asked), "empty")
    parts: list[tuple[str, Sequence[Block]]] = [
        ("Stages of the job", [_job_table(_job(run))]),
        ("Bottlenecks", [_bottlenecks(rules, _folded(verdict.findings)) if judged else unknown]),
        ("Data loaders", [*_loader_settings(loaders), *_loader_times(makers)]),
    ]
    return [Disclosure(title, blocks) for title, blocks in parts if blocks]


# -- the document ----------------------------------------------------------------------------------------------------


def _job(run: Run) -> dict[str, Any]:
    stages = run.stages()
    seconds = stages.seconds
    return {
        "command": list(run.manifest.command),
        "workers": list(run.workers),
        "begin": str(stages.stages[0].begin) if len(stages) else None,
        "end": str(stages.stages[-1].end) if len(stages) else None,
        "seconds": sum(seconds.values()),
        "initialization_s": seconds.get("initialization"),
        "training_loop_s": stages.loop_s,
        "finalization_s": seconds.get("finalization"),
        "training_s": seconds.get("training", 0.0),
        "evaluation_s": seconds.get("evaluation", 0.0),
        "training_steps": sum(stage.steps for stage in stages["training"]),
        "evaluation_steps": sum(stage.steps for stage in stages["evaluation"]),
    }


def _system(run: Run) -> list[dict[str, Any]]:
    rows = []
    for listed in run.samples().rows():
        name, stream = listed["metric"], listed["stream"]
        if name.startswith("process."):
            continue  # of single processes
        try:
            samples = run.samples(name, stream=stream)
        except UnknownNameError:
            continue
        columns = np.asarray(samples.values).reshape(len(samples), -1)
        for instance, values in zip(samples.instances or ("",), columns.T, strict=True):
            known = values[np.isfinite(values)]
            if len(known):
                rows.append({
                    "stream": stream, "metric": name, "instance": instance, "unit": samples.unit,
                    **_percentiles(known), "mean": float(known.mean()), "p5": float(np.percentile(known, 5)),
                })  # fmt: skip
    return rows


def _phases(run: Run) -> dict[str, Any]:
    found = {mode: run.phases(mode) for mode in (Mode.TRAIN, Mode.EVAL)}
    return {
        mode.name: {
            "steps": len(phases), "seconds": float(phases.seconds.sum()), "shares": _known(phases.shares),
            "typical": {
                "steps": len(typical), "mean": float(typical.seconds.mean()), "shares": _known(typical.shares)
            },
        }
        for mode, phases in found.items()
        if len(typical := phases.typical())
    }  # fmt: skip


def _durations(run: Run) -> dict[str, Any]:
    found = {mode: run.phases(mode).seconds for mode in (Mode.TRAIN, Mode.EVAL)}
    return {
        mode.name: {"steps": len(each), "mean": float(each.mean()), **_percentiles(each)}
        for mode, each in found.items()
        if len(each)
    }


def _percentiles(values: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(_PERCENTILES, np.percentile(values, list(_PERCENTILES.values())).tolist(), strict=True))


def _rule(status: RuleStatus, findings: Sequence[Finding], rules: Mapping[str, ProfilerRule]) -> dict[str, Any]:
    text = rules.get(status.rule, ProfilerRule("", {}))
    own = [finding for finding in findings if finding.rule == status.rule]
    return {
        **status.to_json(), "looks_for": text.looks_for, "parameters": dict(text.parameters),
        "times_triggered": sum(finding.count for finding in own),
        "what_to_try": list(dict.fromkeys(line for finding in own for line in finding.what_to_try)),
    }  # fmt: skip


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not (isinstance(value, float) and math.isnan(value))}


# -- the page --------------------------------------------------------------------------------------------------------


def _drawn(picture: Picture | None, caption: str) -> list[Figure]:
    return [] if picture is None else [Figure(picture, caption)]


def _problems(findings: Sequence[Finding]) -> list[Finding]:
    """Without those that only sum up."""
    return [finding for finding in findings if finding.severity is not Severity.INFO]


def _folded(findings: Sequence[Finding]) -> list[tuple[Finding, str]]:
    """Findings with their sentences. What a rule found in several models, such as each fold, is one: the first."""
    groups = over_models(findings)
    return [(first, "; ".join(filter(None, (first.message, also_in(others))))) for first, *others in groups]


def _head(verdict: Verdict, document: Mapping[str, Any]) -> Section:
    problems = _folded(_problems(verdict.findings))
    words = f"{count(len(problems), 'finding')} on time and machine" if problems else "Where the time went"
    severity = tone(verdict) if problems else "info"
    train = document["phases"].get("TRAIN")
    lines = []
    if train is not None:
        typical = train["typical"]
        shares = sorted(typical["shares"].items(), key=lambda each: -each[1])[:3]
        largest = ", ".join(f"{percent(share)} {name}" for name, share in shares if share > 0)
        lines.append(f"training step {exact_duration(typical['mean'])} on average: {largest}{_far_longer(train)}")
    lines += [message for _, message in problems[:3]]
    blocks = (Text(verdict.run, "path"), Items(lines))
    return Section(words, blocks, level=1, tone=severity or "healthy", label="watchglass profiler report")


def _far_longer(phases: Mapping[str, Any]) -> str:
    typical = phases["typical"]
    spent = phases["seconds"] - typical["steps"] * typical["mean"]
    return far_longer_steps(phases["steps"] - typical["steps"], spent, phases["seconds"])


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


def _system_tables(system: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not system:
        return [Text("The machine was not sampled.")]
    several = len({row["stream"] for row in system}) > 1
    # A table of all cores has a hundred rows on a large machine: folded.
    whole = [row for row in system if not row["instance"] or row["metric"].startswith("gpu.")]
    single = [row for row in system if row not in whole]
    folded = [Disclosure("Single cores and devices", [_usage_table(single, several)])] if single else []
    return [_usage_table(whole, several), *folded]


def _usage_table(rows: Sequence[Mapping[str, Any]], several: bool) -> TextTable:
    def name(row: Mapping[str, Any]) -> str:
        return " ".join(filter(None, (f"{row['stream']}:" if several else "", row["metric"], row["instance"])))

    head = ("metric", "maximum", "99th percentile", "95th", "median", "minimum")
    return TextTable(head, [(name(row), *(quantity(row[key], row["unit"]) for key in _PERCENTILES)) for row in rows])


def _framework(run: Run, document: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    if document["phases"]:
        names = list(next(iter(document["phases"].values()))["shares"])
        rows = [
            (
                mode,
                f"{found['steps']:,}",
                duration(found["seconds"]) + _far_longer(found),
                exact_duration(found["typical"]["mean"]),
                *(percent(found["typical"]["shares"].get(name, 0.0)) for name in names),
            )
            for mode, found in document["phases"].items()
        ]
        blocks.append(TextTable(("steps", "number", "in total", "mean", *names), rows))
    else:
        blocks.append(Text("The phases of steps were not recorded."))
    return [*blocks, *(Section(title, [content], level=3) for title, content in code_tables(run))]


def _rules_table(rules: Sequence[Mapping[str, Any]]) -> TextTable:
    rows = [
        (
            rule["rule"], rule["looks_for"], ": ".join(filter(None, (rule["status"], rule["reason"]))),
            f"{rule['times_triggered']:,}" if rule["times_triggered"] else "",
            ", ".join(f"{name} {value}" for name, value in rule["parameters"].items()),
        )
        for rule in rules
    ]  # fmt: skip
    return TextTable(("rule", "looks for", "status", "times", "parameters"), rows)


def _found(findings: Sequence[tuple[Finding, str]]) -> list[Section]:
    return [
        Section(_title(finding), [Text(message), Items(finding.what_to_try)], level=3, tone=finding.severity.value)
        for finding, message in findings[:_MOST_ROWS]
    ]


def _title(finding: Finding) -> str:
    """The rule, and the worker unless it is the first one or all."""
    return finding.rule if finding.worker in ("", "worker_0") else f"{finding.rule} on {finding.worker}"


def _step_table(document: Mapping[str, Any]) -> list[TextTable]:
    rows = [
        (mode, f"{found['steps']:,}", *(exact_duration(found[key]) for key in ("mean", *_PERCENTILES)))
        for mode, found in document["durations"].items()
    ]
    head = ("steps", "number", "mean", "longest", "99th percentile", "95th", "median", "shortest")
    return [TextTable(head, rows)] if rows else []


def _bottlenecks(document_rules: Sequence[Mapping[str, Any]], findings: Sequence[tuple[Finding, str]]) -> Pairs:
    """What the rules on each kind of bottleneck say, also that they could not judge it."""
    rules = {rule["rule"]: rule for rule in document_rules}
    pairs = []
    for title, names in _BOTTLENECKS:
        judged = [rules[name] for name in names if name in rules]
        found = [each for each in findings if each[0].rule in names]
        messages = [f"{each.rule}, {each.severity.value}: {message}" for each, message in found]
        states = [
            f"{rule['rule']}: not judged, {rule['reason'] or rule['status']}"
            for rule in judged
            if rule["status"] not in (Status.NO_ISSUES_FOUND.value, Status.ISSUES_FOUND.value)
        ]
        # An info is no issue: beside it, "no issues found" would read as its opposite.
        spoken = {each.rule for each, _ in found}
        silent = [rule["rule"] for rule in judged if rule["status"] == Status.NO_ISSUES_FOUND.value]
        clean = [name for name in silent if name not in spoken]
        words = messages + states + ([f"{', '.join(clean)}: no issues found"] if clean else [])
        if not judged:
            words = ["no rule was evaluated"]
        pairs.append((title, [Text(each) for each in words]))
    return Pairs(pairs)


def _loaders(document: Mapping[str, Any]) -> list[Block]:
    loaders, makers = document["data_loaders"], document["loader_workers"]
    return [*_loader_settings(loaders), *_loader_times(makers)]


def _loader_times(makers: Sequence[Mapping[str, Any]]) -> list[Section]:
    """The mean times of a batch by the process that made it."""
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


def _loader_settings(loaders: Sequence[Mapping[str, Any]]) -> list[TextTable]:
    if not loaders:
        return []
    keys = list(dict.fromkeys(key for loader in loaders for key in loader))
    rows = [tuple(str(loader.get(key, "")) for key in keys) for loader in loaders[:_MOST_ROWS]]
    return [TextTable([key.replace("_", " ") for key in keys], rows)]
