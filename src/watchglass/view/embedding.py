"""A latent space in two dimensions, over the saved steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, UnknownNameError, importing
from watchglass.records import Mode, Role
from watchglass.run import Range, half_open

if TYPE_CHECKING:
    from watchglass.run import Run

#: Most points and most steps of an embedding.
_MOST_POINTS, _MOST_STEPS = 2_000, 24
METHODS = ("pca", "tsne", "umap")

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EmbeddedStep:
    """The points of one step.

    Attributes:
        step: The step.
        points: Their places, float64[n, 2].
        labels: The captured class of each, int64[n]; None where none was captured.
    """

    step: int
    points: Matrix
    labels: NDArray[np.int64] | None


def embedding(
    run: Run, tensor: str, *, method: str = "pca", mode: Mode = Mode.TRAIN, steps: Range | None = None,
    worker: str | None = None,
) -> list[EmbeddedStep]:  # fmt: skip
    """The rows of a captured tensor as points of a plane, at each saved step.

    ``pca`` has the axes of the last step at all steps, so that they can be compared. ``tsne`` and ``umap`` begin with
    the points of the step before if the examples are the same by their labels, else with those of ``pca``, so that
    clusters do not turn between steps. Rows that are not finite are left out.

    Args:
        run: The run.
        tensor: Name of a tensor saved as a whole; the first axis are its rows, the others are joined.
        method: One of :data:`METHODS`.
        mode: Of which steps.
        steps: Which of these; None for all. Of many, some spread over them.
        worker: Whose.

    Raises:
        InvalidValueError: Another method, or a tensor with fewer than 4 rows or fewer than 2 numbers a row.
        UnknownNameError: The tensor was not saved as a whole.
        MissingExtraError: The method needs a package that is not installed.
    """
    if method not in METHODS:
        raise InvalidValueError(f"a method must be one of {', '.join(METHODS)}, but got {method!r}")
    values = _saved(run, tensor, mode, worker)
    first, stop = half_open(steps) or (0, 1 << 62)
    chosen = [step for step in values if first <= step < stop]
    if not chosen:
        raise UnknownNameError(
            f"{run.location} has no whole {tensor} at {mode.name} steps"
            f"{'' if steps is None else f' {first} to {stop - 1}'}; record it with a collection that has save_raw"
        )
    chosen = [chosen[place] for place in np.unique(np.linspace(0, len(chosen) - 1, _MOST_STEPS).round().astype(int))]
    labels = _labels(run, mode, worker)
    rows = [_rows(values[step], labels.get(step), tensor) for step in chosen]
    last = rows[-1][0]
    centre = last.mean(axis=0)
    axes = np.linalg.svd(last - centre, full_matrices=False)[2][:2].T
    fit = _fit(method)
    frames: list[EmbeddedStep] = []
    for step, (matrix, classes) in zip(chosen, rows, strict=True):
        start = (matrix - centre) @ axes
        if fit is not None:
            start = fit(matrix, frames[-1].points if frames and _same(frames[-1], start, classes) else _small(start))
        frames.append(EmbeddedStep(step, start, classes))
    return frames


def _saved(run: Run, tensor: str, mode: Mode, worker: str | None) -> dict[int, Any]:
    return {
        step: value
        for step, value in run.tensor(tensor).values(mode, worker, as_float32=True).items()
        if np.ndim(value) > 1
    }


def _labels(run: Run, mode: Mode, worker: str | None) -> dict[int, Any]:
    """Whole labels by step, of runs with one model's."""
    names = run.tensor_names(role=Role.LABEL)
    return run.tensor(names[0]).values(mode, worker) if len(names) == 1 else {}


def _rows(value: Any, labels: Any, tensor: str) -> tuple[Matrix, NDArray[np.int64] | None]:
    """Finite rows of a tensor with their classes, a sample of very many."""
    matrix = np.asarray(value, np.float64).reshape(len(value), -1)
    classes = np.asarray(labels) if labels is not None and np.shape(labels) == (len(matrix),) else None
    keep = np.flatnonzero(np.isfinite(matrix).all(axis=1))
    keep = (
        keep[np.unique(np.linspace(0, len(keep) - 1, min(len(keep), _MOST_POINTS)).round().astype(int))]
        if len(keep)
        else keep
    )
    if len(keep) < 4 or matrix.shape[1] < 2:
        raise InvalidValueError(
            f"an embedding needs at least 4 finite rows of at least 2 numbers, but {tensor} has {len(keep)} of "
            f"{matrix.shape[1]}"
        )
    return matrix[keep], None if classes is None else classes[keep].astype(np.int64)


def _same(before: EmbeddedStep, start: Matrix, classes: NDArray[np.int64] | None) -> bool:
    """Whether two steps show the same examples, as far as their labels say."""
    return (
        classes is not None
        and before.labels is not None
        and len(before.points) == len(start)
        and np.array_equal(before.labels, classes)
    )


def _small(points: Matrix) -> Matrix:
    """Points as t-SNE begins: with a deviation of 1e-4 (van der Maaten and Hinton 2008, section 3.4)."""
    return points / (points[:, 0].std() or 1.0) * 1e-4


def _fit(method: str) -> Callable[[Matrix, Matrix], Matrix] | None:
    """A function of rows and of points to begin with; None for the linear method."""
    if method == "pca":
        return None
    if method == "umap":
        with importing("umap needs umap-learn", "umap"):
            umap = import_module("umap")
        return lambda rows, start: umap.UMAP(init=start, random_state=0, n_jobs=1).fit_transform(rows)
    with importing("tsne needs scikit-learn", "tsne"):
        manifold = import_module("sklearn.manifold")

    def tsne(rows: Matrix, start: Matrix) -> Matrix:
        perplexity = min(30.0, (len(rows) - 1) / 3)
        found: Matrix = manifold.TSNE(init=start, perplexity=perplexity, random_state=0).fit_transform(
            rows.astype(np.float32)
        )
        return found

    return tsne
