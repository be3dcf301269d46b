"""The profiler's report: where the time of a run went, and what the rules on time found, as one HTML file and as JSON.

The page is a headline and the section of the report on time and machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from watchglass.records import Verdict, count, facts
from watchglass.run import levels_of
from watchglass.view.blocks import Items, Section, Text
from watchglass.view.formats import RuleText
from watchglass.view.html_format import page_html
from watchglass.view.json_format import finding_to_json, strict_json
from watchglass.view.time_numbers import duration_numbers, job_numbers, known_numbers, phase_numbers, rule_numbers
from watchglass.view.timing import folded, problems, time_parts
from watchglass.view.usage import phases_sentence
from watchglass.view.verdict import tone

if TYPE_CHECKING:
    from watchglass.run import Run

#: Identifier of the form of the document; its number rises when a key changes its meaning or goes.
SCHEMA = "urn:watchglass:schema:profiler-report:1"


def profile_json(run: Run, verdict: Verdict, rules: Mapping[str, RuleText]) -> str:
    """The report as a JSON document.

    Args:
        run: The run.
        verdict: The verdict of the rules on time and system metrics.
        rules: Documentation of these rules, by name.
    """
    times = run.module_times()
    document = {
        "$schema": SCHEMA,
        "run": verdict.run,
        "job": job_numbers(run),
        "system": [asdict(each) for each in levels_of(run)],
        "phases": phase_numbers(run),
        "durations": duration_numbers(run),
        "modules": [{**asdict(row), "self_s": row.self_s} for row in times.rows],
        "operators": [
            {
                "first_step": each.steps.start, "end_step": each.steps.stop, "cost": known_numbers(asdict(each.cost)),
                "rows": [asdict(row) for row in each.rows], "modules": [asdict(row) for row in each.modules],
                "memory": [asdict(row) for row in each.memory],
            }
            for each in run.operators()
        ],
        "python": [
            {
                "first_step": each.steps.start, "end_step": each.steps.stop, "profiler": each.profiler,
                "cost": known_numbers(asdict(each.cost)), "rows": [asdict(row) for row in each.rows],
            }
            for each in run.python_profiles()
        ],
        "data_loaders": [loader.to_data() for loader in run.facts(facts.LoaderSettings)],
        "loader_workers": [known_numbers(asdict(row)) for row in run.loader_workers().rows],
        "rules": [rule_numbers(status, verdict.findings, rules.get(status.rule)) for status in verdict.statuses],
        "findings": [finding_to_json(finding) for finding in verdict.findings],
    }  # fmt: skip
    return strict_json(document)


def render_profile_report(run: Run, verdict: Verdict, rules: Mapping[str, RuleText]) -> str:
    """The report as a page, see :func:`profile_json`."""
    sections = [Section(part.title, part.blocks) for part in time_parts(run, verdict, lambda: rules)]
    return page_html(f"watchglass: profile of {verdict.run}", [_head(run, verdict), *sections])


def _head(run: Run, verdict: Verdict) -> Section:
    found = folded(problems(verdict.findings))
    words = f"{count(len(found), 'finding')} on time and machine" if found else "Where the time went"
    severity = tone(verdict) if found else "info"
    phases = run.phases()
    lines = [*([phases_sentence(phases)] if len(phases) else []), *(message for _, message in found[:3])]
    blocks = (Text(verdict.run, "path"), Items(lines))
    return Section(words, blocks, level=1, tone=severity or "healthy", label="watchglass profiler report")
