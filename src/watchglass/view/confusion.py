"""Which classes a classifier takes for which: captured predictions against captured labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import Mode, count, series_name
from watchglass.run import Range, half_open
from watchglass.view.pictures.records import Axis, Grid
from watchglass.view.text import percent

if TYPE_CHECKING:
    from watchglass.run import Run

#: Most classes of a picture.
_MOST_CLASSES = 200


@dataclass(frozen=True, eq=False)
class ConfusionCounts:
    """ConfusionCounts of a classifier by label.

    Attributes:
        counts: Examples, int64[classes, classes], by label and by answer.
        mode: Of which steps.
        steps: These steps, ascending.
        threshold: Of two classes with one number each, the number above which the answer is 1; else None.
    """

    counts: NDArray[np.int64]
    mode: Mode
    steps: tuple[int, ...]
    threshold: float | None = None

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(self.counts.trace() / self.counts.sum())

    def worst(self, most: int = 3) -> list[tuple[int, int, int]]:
        """The most frequent wrong answers: label, answer and examples, the most frequent first."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(wrong, axis=None, kind="stable")[::-1][:most]
        places = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [
            (int(label), int(answer), int(wrong[label, answer])) for label, answer in places if wrong[label, answer]
        ]


def confusion(
    run: Run, mode: Mode | None = None, steps: Range | None = None, worker: str | None = None, model: int = 0
) -> ConfusionCounts:
    """Counts the answers at steps that have whole predictions and labels.

    Predictions of shape [n, classes, ...] answer the class with the greatest number; [n] or [n, 1] answer 1 above
    one half if all are between 0 and 1, else above 0. Labels are classes, or have the shape of the predictions. A
    negative label is left out, as loss functions ignore it.

    Args:
        run: The run.
        mode: Of which steps; None for evaluations if these have predictions, else training.
        steps: Which of these steps; None for those of the last evaluation, or for the last training step.
        worker: Whose.
        model: Number of the model, 0 for the first.

    Raises:
        UnknownNameError: No step has both as whole tensors.
        InvalidValueError: They are not those of a classifier.
    """
    names = [series_name(name, model) for name in ("prediction", "label")]
    for tried in (Mode.EVAL, Mode.TRAIN) if mode is None else (mode,):
        chosen = _steps(run, names, tried, steps, worker)
        if chosen:
            pairs = [
                [run.tensor(name).value(step, tried, worker, as_float32=True) for name in names] for step in chosen
            ]
            return _counted(pairs, tried, tuple(chosen))
    where = "" if mode is None else f" at {mode.name} steps"
    raise UnknownNameError(
        f"{run.location} has no whole predictions and labels{where}; record them with "
        "watchglass run --save-raw predictions,labels"
    )


def _steps(run: Run, names: list[str], mode: Mode, wanted: Range | None, worker: str | None) -> list[int]:
    """Steps at which all of the tensors are there as a whole."""
    known = set(run.tensor_names())
    if not known.issuperset(names):
        return []
    found = sorted(set.intersection(*(set(run.tensor(name).values(mode, worker)) for name in names)))
    if (given := half_open(wanted)) is not None:
        return [step for step in found if given[0] <= step < given[1]]
    if mode is Mode.TRAIN:
        return found[-1:]
    evaluations = [
        [step for step in found if each.first_step <= step <= each.last_step] for each in run.stretches(mode, worker)
    ]
    return next((steps for steps in reversed(evaluations) if steps), [])


def _counted(pairs: list[list[Any]], mode: Mode, steps: tuple[int, ...]) -> ConfusionCounts:
    scores = [np.asarray(prediction) for prediction, _ in pairs]
    threshold = None
    if all(each.ndim < 2 or each.shape[1] == 1 for each in scores):
        shares = all(bool(((each >= 0) & (each <= 1)).all()) for each in scores)
        threshold = 0.5 if shares else 0.0
    answers, labels = zip(
        *(_answers(score, label, threshold) for score, (_, label) in zip(scores, pairs, strict=True)), strict=True
    )
    answer, label = np.concatenate(answers), np.concatenate(labels)
    known = label >= 0
    answer, label = answer[known], label[known]
    widest = max((each.shape[1] for each in scores if threshold is None), default=2)
    classes = max(widest, 1 + int(max(answer.max(initial=0), label.max(initial=0))))
    if not len(label) or classes > _MOST_CLASSES:
        raise InvalidValueError(
            f"a confusion has 2 to {_MOST_CLASSES} classes and at least one label, but got {classes:,} classes and "
            f"{count(len(label), 'label')}"
        )
    counts = np.bincount(label * classes + answer, minlength=classes * classes).reshape(classes, classes)
    return ConfusionCounts(counts, mode, steps, threshold)


def _answers(score: NDArray[Any], label: Any, threshold: float | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """ConfusionCounts and labels as classes, int64[n] each."""
    target = np.asarray(label)
    if threshold is not None:
        answer, target = (score > threshold).reshape(-1), target.reshape(-1)
    else:
        if target.ndim == score.ndim:
            target = target.argmax(axis=1) if target.shape == score.shape else target.reshape(target.shape[0], -1)
        answer, target = score.argmax(axis=1).reshape(-1), target.reshape(-1)
    if answer.shape != target.shape or not np.array_equal(target, np.rint(target)):
        raise InvalidValueError(
            f"a confusion needs classes as labels, one for each prediction, but got labels {list(np.shape(label))} of "
            f"{np.asarray(label).dtype} for predictions {list(score.shape)}"
        )
    return answer.astype(np.int64), target.astype(np.int64)


def confusion_grid(found: ConfusionCounts) -> Grid:
    """Shares of the answers to each label; a row without examples is empty."""
    totals = found.counts.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shares = (found.counts / totals).astype(np.float32)
    where = f"{found.mode.name} {'step' if len(found.steps) == 1 else 'steps'} {found.steps[0]}"
    where += f" to {found.steps[-1]}" if len(found.steps) > 1 else ""
    return Grid(
        f"Confusion: {percent(found.accuracy)} right of {count(int(totals.sum()), 'example')}, {where}",
        Axis("answer", whole=True), tuple(f"label {each}" for each in range(len(shares))),
        np.arange(len(shares), dtype=np.float64), shares, 0.0, 1.0, "share of the label's examples",
        np.zeros(shares.shape, np.bool_),
    )  # fmt: skip


def confusion_sentence(found: ConfusionCounts) -> str:
    """The most frequent mistakes in words."""
    pairs = [f"label {label} as {answer} ({count(number, 'example')})" for label, answer, number in found.worst()]
    return f"Most frequent mistakes: {'; '.join(pairs)}." if pairs else "No mistakes."
