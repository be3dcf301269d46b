"""Runs side by side: verdicts, curves, the settings that differ, where they part, and the diagnoses of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from watchglass.errors import WatchglassError
from watchglass.records import Severity, Verdict, count
from watchglass.run import open_run
from watchglass.view.blocks import Block, Disclosure, Figure, Inline, Section, Span, Text, TextTable
from watchglass.view.conclusion import outcome
from watchglass.view.courses import Courses
from watchglass.view.curves import compared_curves, first_divergence
from watchglass.view.formats import Judged
from watchglass.view.sections import diagnosis_blocks
from watchglass.view.series import Steps
from watchglass.view.settings import differing, settings_of
from watchglass.view.text import duration, number
from watchglass.view.verdict import tone
from watchglass.view.verdict_sentences import headline

if TYPE_CHECKING:
    from watchglass.run import Run

#: Runs whose numbers are drawn and compared, and whose diagnoses are shown.
_DRAWN, _DIAGNOSED = 12, 50
#: Settings that differ and are shown; runs that are columns of their table, of more runs each is a row.
_SETTINGS, _COLUMNS = 40, 10
#: Tones of a page by the worst outcome.
_TONES = ("error", "warning", "healthy")


class Compared(NamedTuple):
    """One of the runs of a comparison."""

    name: str  #: What it is called beside the others.
    verdict: Verdict  #: Its verdict.
    settings: dict[str, str]  #: Its settings; without any if it cannot be read.
    run: Run | None = None  #: The run, if its numbers are compared.
    tone: str = ""  #: How serious its verdict is.
    courses: Courses | None = None  #: What is known of its tensors already.
    address: str = ""  #: Of its page.
    tensor_address: Callable[[str, int], str] = lambda name, step: ""  #: Of the page of a tensor at a step.


def comparison_page(judged: Judged) -> list[Block]:
    """The page of many runs: those with findings first; each part names what it leaves out."""
    order = {"findings": 0, "no answer": 1, "clean": 2}
    verdicts = sorted(judged.verdicts, key=lambda each: order[outcome(each, judged.terms)])
    names = short_names([each.run for each in verdicts])
    compared: list[Compared] = []
    drawn = 0
    for each in verdicts:
        run = _opened(judged, each)
        drawn += run is not None
        kept = run if drawn <= _DRAWN else None  # the others are not kept open
        compared.append(Compared(names[each.run], each, {} if run is None else settings_of(run), kept, tone(each)))
    worst = min((order[outcome(each, judged.terms)] for each in verdicts), default=1)
    head = Section(judged.headline, [Text(_whose(verdicts), "path")], 1, _TONES[worst], "watchglass")
    return [head, *comparison_blocks(compared)]


def comparison_blocks(
    compared: Sequence[Compared], metric: str = "loss", by: str = "step", steps: Steps = None,
    choices: Sequence[Block] = (),
) -> list[Section]:  # fmt: skip
    """The sections of a comparison.

    Args:
        compared: The runs.
        metric: The number whose curves are drawn.
        by: Over what, one of :data:`~watchglass.view.curves.BY`.
        steps: Curves show only these training steps, half-open.
        choices: What a reader can choose of the curves.
    """
    rows: list[Sequence[Inline]] = [
        (
            Span(each.tone, f"tag {each.tone}") if each.tone in {one.value for one in Severity} else "",
            Span(each.name, "code", each.address), headline(each.verdict), f"{each.verdict.train_steps:,}",
            duration(each.verdict.seconds),
            ", ".join(f"{of} {number(value)}" for of, value in each.verdict.metrics.items()),
        )
        for each in compared
    ]  # fmt: skip
    return [
        Section("Runs", [TextTable(("severity", "run", "verdict", "steps", "time", "last values"), rows)]),
        Section("Curves", [*choices, *_curves(compared, metric, by, steps)]),
        Section("Settings that differ", _settings([each for each in compared if each.settings])),
        Section("Where they part", _parting([each for each in compared if each.run is not None])),
        Section("Diagnoses", _diagnoses([each for each in compared if each.verdict.diagnoses])),
    ]


def short_names(locations: Sequence[str]) -> dict[str, str]:
    """The names of runs without the folders that all share."""
    parts = [PurePath(each).parts for each in locations]
    shared = 0
    while len(parts) > 1 and len({each[: shared + 1] for each in parts}) == 1 and shared + 1 < min(map(len, parts)):
        shared += 1
    return {each: str(PurePath(*part[shared:])) for each, part in zip(locations, parts, strict=True)}


def _whose(verdicts: Sequence[Verdict]) -> str:
    shared = {str(PurePath(each.run).parent) for each in verdicts}
    return shared.pop() if len(shared) == 1 else count(len(shared), "folder")


def _curves(compared: Sequence[Compared], metric: str, by: str, steps: Steps) -> list[Block]:
    runs = {each.name: each.run for each in compared if each.run is not None}
    picture = compared_curves(runs, metric, by, steps)
    readable = sum(1 for each in compared if each.settings)
    left = f" Shown: the first {len(runs)} of {readable:,} runs." if readable > len(runs) else ""
    if picture is None:
        return [Text(f"No run recorded {metric}.", "empty")]
    return [Figure(picture, f"{metric} of the first model of each run, which keeps its colour on all pages.{left}")]


def _settings(compared: Sequence[Compared]) -> list[Block]:
    if len(compared) < 2:
        return []
    settings = [each.settings for each in compared]
    different = differing(settings)
    same = len({name for each in settings for name in each}) - len(different)
    note = Text(f"{count(same, 'setting is', 'settings are')} the same in all runs.", "small")
    if not different:
        return [note]
    shown, left = different[:_SETTINGS], len(different) - _SETTINGS
    more = [Text(f"and {count(left, 'further setting')}")] if left > 0 else []
    cells = [[each.settings.get(name, "") for name in shown] for each in compared]
    names, titles = [each.name for each in compared], list(shown)
    first = "run"
    if len(compared) <= _COLUMNS:
        first, names, titles, cells = "setting", titles, names, [list(column) for column in zip(*cells, strict=True)]
    rows: list[Sequence[Inline]] = [(Span(name, "code"), *row) for name, row in zip(names, cells, strict=True)]
    return [TextTable((first, *titles), rows), *more, note]


def _parting(compared: Sequence[Compared]) -> list[Block]:
    """Of the first run and each other one."""
    return [_divergence(compared[0], other) for other in compared[1:]]


def _divergence(first: Compared, other: Compared) -> Text:
    assert first.run is not None
    assert other.run is not None
    names = f"{first.name} and {other.name}"
    kept = () if first.courses is None or other.courses is None else (first.courses, other.courses)
    try:
        found = first_divergence(first.run, other.run, kept)
    except LookupError as error:
        return Text(f"{names}: {error}.")
    if found is None:
        return Text(f"{names} do not differ at the steps that both have captured.")
    tensor = Span(found.tensor, "code", other.tensor_address(found.tensor, found.step))
    values = " and ".join(_told_apart(*found.values))
    return Text((f"{names} first differ at step {found.step:,}, in", tensor, f"({values})."))


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart."""
    texts = ((f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(5, 18))
    return next((each for each in ((number(one), number(other)), *texts) if each[0] != each[1]), (str(one), str(other)))


def _opened(judged: Judged, verdict: Verdict) -> Run | None:
    try:
        return judged.runs.get(verdict.run) or open_run(verdict.run)
    except (WatchglassError, OSError):  # its verdict says why
        return None


def _diagnoses(sick: Sequence[Compared]) -> list[Block]:
    blocks: list[Block] = [
        Disclosure(f"{each.name}: {headline(each.verdict)}", diagnosis_blocks(each.verdict))
        for each in sick[:_DIAGNOSED]
    ]
    left = len(sick) - _DIAGNOSED
    return [*blocks, Text(f"and {count(left, 'further run')} with diagnoses")] if left > 0 else blocks
