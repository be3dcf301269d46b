"""Runs side by side: verdicts, losses, the settings that differ, and the diagnoses of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from watchglass.errors import WatchglassError
from watchglass.records import Severity, Verdict, count
from watchglass.run import open_run
from watchglass.view.blocks import Block, Disclosure, Figure, Inline, Section, Span, Text, TextTable
from watchglass.view.conclusion import outcome
from watchglass.view.curves import compared_curves
from watchglass.view.formats import Judged
from watchglass.view.sections import diagnosis_blocks
from watchglass.view.settings import differing, settings_of
from watchglass.view.text import duration, number
from watchglass.view.verdict import tone
from watchglass.view.verdict_sentences import headline

if TYPE_CHECKING:
    from watchglass.run import Run

#: Runs whose losses are drawn, and whose diagnoses are shown.
_DRAWN, _DIAGNOSED = 12, 50
#: Settings that differ and are shown.
_SETTINGS = 40


def comparison_blocks(judged: Judged) -> list[Block]:
    """The page of many runs: those with findings first; each part names what it leaves out."""
    order = {"findings": 0, "no answer": 1, "clean": 2}
    verdicts = sorted(judged.verdicts, key=lambda each: order[outcome(each, judged.terms)])
    names = short_names([each.run for each in verdicts])
    settings: dict[str, dict[str, str]] = {}
    drawn: dict[str, Run] = {}  # the others are not kept open
    for each in verdicts:
        if (run := _opened(judged, each)) is not None:
            settings[names[each.run]] = settings_of(run)
            drawn |= {names[each.run]: run} if len(drawn) < _DRAWN else {}
    worst = min((order[outcome(each, judged.terms)] for each in verdicts), default=1)
    return [
        Section(judged.headline, [Text(_whose(verdicts), "path")], 1, _TONES[worst], "watchglass"),
        Section("Runs", [TextTable(_HEAD, [_row(each, names[each.run]) for each in verdicts])]),
        Section("Losses", _losses(drawn, len(settings))),
        Section("Settings that differ", _settings(settings)),
        Section("Diagnoses", _diagnoses(verdicts, names)),
    ]


def short_names(locations: Sequence[str]) -> dict[str, str]:
    """The names of runs without the folders that all share."""
    parts = [PurePath(each).parts for each in locations]
    shared = 0
    while len(parts) > 1 and len({each[: shared + 1] for each in parts}) == 1 and shared + 1 < min(map(len, parts)):
        shared += 1
    return {each: str(PurePath(*part[shared:])) for each, part in zip(locations, parts, strict=True)}


#: Tones of a page by the worst outcome.
_TONES = ("error", "warning", "healthy")
_HEAD = ("", "run", "verdict", "steps", "time", "last values")


def _row(verdict: Verdict, name: str) -> Sequence[Inline]:
    severity = tone(verdict)
    values = ", ".join(f"{of} {number(value)}" for of, value in verdict.metrics.items())
    sign = Span(severity, f"tag {severity}") if severity in {each.value for each in Severity} else ""
    return sign, Span(name, "code"), headline(verdict), f"{verdict.train_steps:,}", duration(verdict.seconds), values


def _whose(verdicts: Sequence[Verdict]) -> str:
    shared = {str(PurePath(each.run).parent) for each in verdicts}
    return shared.pop() if len(shared) == 1 else count(len(shared), "folder")


def _opened(judged: Judged, verdict: Verdict) -> Run | None:
    try:
        return judged.runs.get(verdict.run) or open_run(verdict.run)
    except (WatchglassError, OSError):  # its verdict says why
        return None


def _losses(drawn: Mapping[str, Run], runs: int) -> list[Block]:
    picture = compared_curves(drawn)
    left = f" Shown: the first {len(drawn)} of {runs:,} runs." if runs > len(drawn) else ""
    return [] if picture is None else [Figure(picture, f"Training loss of the first model of each run.{left}")]


def _settings(found: Mapping[str, Mapping[str, str]]) -> list[Block]:
    if len(found) < 2:
        return []
    different = differing(list(found.values()))
    if not different:
        return [Text("None of the recorded settings differs.", "empty")]
    shown = different[:_SETTINGS]
    rows: list[Sequence[Inline]] = [
        (Span(name, "code"), *(each.get(setting, "") for setting in shown)) for name, each in found.items()
    ]
    left = len(different) - len(shown)
    note = [Text(f"and {count(left, 'further setting')}")] if left else []
    return [TextTable(("run", *shown), rows), *note]


def _diagnoses(verdicts: Sequence[Verdict], names: Mapping[str, str]) -> list[Block]:
    sick = [each for each in verdicts if each.diagnoses]
    blocks: list[Block] = [
        Disclosure(f"{names[each.run]}: {headline(each)}", diagnosis_blocks(each)) for each in sick[:_DIAGNOSED]
    ]
    left = len(sick) - _DIAGNOSED
    return [*blocks, Text(f"and {count(left, 'further run')} with diagnoses")] if left > 0 else blocks
