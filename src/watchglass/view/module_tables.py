"""The modules of a model in the order in which they run, at one step; the first bad one stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from watchglass.errors import UnknownNameError
from watchglass.records import Fact, Mode, Role, Verdict, facts, read_facts
from watchglass.view.pictures.tables import Inline, Span, TextTable
from watchglass.view.text import number, percent

if TYPE_CHECKING:
    from watchglass.run import Run

#: Most rows of the table of modules.
MOST_MODULES = 1000
_FIELDS = ("min", "max", "std", "zero_ratio", "nonfinite")


class BadPlace(NamedTuple):
    """Where values were first not finite: the training step, the module, sentences about it, and what to try."""

    step: int
    module: str
    sentences: tuple[str, ...]
    cures: tuple[str, ...]


def first_bad(run: Run, verdict: Verdict) -> BadPlace | None:
    """The first place that capture named as the one where values became not finite; None where it named none."""
    for fact in run.facts("first_bad_module"):
        place = next(iter(read_facts([fact], facts.FirstBadPlace)), None)
        if place is None or not place.sentence:
            continue
        step = place.step if place.step is not None else _train_step(run, fact)
        inputs = _inputs(run, place.module, step)
        cures = next((each.what_to_try for each in verdict.diagnoses if _is_about(each.subject, place)), ())
        if not cures and verdict.diagnoses:
            cures = verdict.diagnoses[0].what_to_try
        return BadPlace(step, place.module, (f"{place.sentence}.", *inputs), cures)
    return None


def _is_about(subject: str, place: facts.FirstBadPlace) -> bool:
    return bool(subject) and subject in (place.module, place.tensor)


def _train_step(run: Run, fact: Fact) -> int:
    try:
        mode, step = run.mode_step(fact.global_step)
    except UnknownNameError:  # of a step that is not complete yet
        mode, step = Mode.GLOBAL, 0
    numbers = run.worker().numbers(Mode.TRAIN)
    return step if mode is Mode.TRAIN else numbers.last if len(numbers) else 0


def _inputs(run: Run, module: str, step: int) -> tuple[str, ...]:
    """The range of the inputs of a module, or of the output before it."""
    names = [name for name in run.tensor_names(role=Role.INPUT) if run.tensor(name).info.module == module]
    found = []
    for name in names:
        if steps := run.tensor(name).prev_steps(step, 1):
            try:
                low, high = (run.tensor(name).reduction(steps[0], which) for which in ("min", "max"))
            except UnknownNameError:  # neither statistics nor the whole tensor
                continue
            found.append(f"Its input {name} was from {number(low)} to {number(high)} at step {steps[0]:,}.")
    return tuple(found)


def modules_table(run: Run, step: int, bad: str | None = None) -> TextTable | None:
    """A row for each module whose output was captured at a training step, in the order of the model.

    Args:
        run: The run.
        step: A training step.
        bad: The module that stands out; "" for none, None for the first whose output is not finite.

    Returns:
        Module, type, and of its output least, greatest, deviation, share of zeros, and how many elements are not
        finite; None where no output was captured at the step.

    Raises:
        UnknownNameError: There is no such step.
    """
    table = run.statistics(Role.OUTPUT, steps=(step, step + 1), fields=_FIELDS)
    if not len(table):
        return None
    rows = sorted(table.rows(), key=lambda row: (row["layer_index"] < 0, row["layer_index"], row["tensor"]))
    first = bad or next((row["module"] for row in rows if row["nonfinite"] > 0), None) if bad != "" else None
    shown: list[tuple[Inline, ...]] = []
    for row in rows[:MOST_MODULES]:
        broken = row["nonfinite"] > 0
        name = row["module"] or "(the model)"
        marked = Span(f"{name} (first)", "tag error") if row["module"] == first else Span(name, "code")
        shown.append(
            (
                marked, row["module_type"], _number(row["min"]), _number(row["max"]), _number(row["std"]),
                percent(row["zero_ratio"]) if np.isfinite(row["zero_ratio"]) else "",
                Span(f"{int(row['nonfinite']):,}", "tag error") if broken else "0",
            )
        )  # fmt: skip
    head = ("module", "type", "least output", "greatest", "deviation", "zeros", "not finite")
    return TextTable(head, shown, "findings")


def _number(value: float) -> str:
    return number(value) if np.isfinite(value) else "not finite"
