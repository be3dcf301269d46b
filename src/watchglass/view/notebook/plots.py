"""The pictures of a run that a notebook asks for by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.lazy_imports import named
from watchglass.records import Mode
from watchglass.run import Range
from watchglass.view.captured_images import activations_image, saliency_image
from watchglass.view.confusion import confusion, confusion_grid, confusion_sentence
from watchglass.view.curves import BY, compared_curves
from watchglass.view.distributions import distribution_figure
from watchglass.view.embedding import EmbeddedStep, embedding
from watchglass.view.figures import (
    accuracy_figure,
    gradient_norm_figure,
    learning_rate_figure,
    loss_figure,
    update_ratio_figure,
)
from watchglass.view.layer_grids import LAYER_FIELDS, layer_grid
from watchglass.view.notebook.figures import animated, figure_of
from watchglass.view.pictures.colours import shades
from watchglass.view.pictures.records import Axis, Line, Lines, Picture, PointGroup, Points
from watchglass.view.story import story_figure
from watchglass.view.time_figures import durations_figure, machine_figure, phases_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from watchglass.run import Run

#: Most lines of features, and most classes that have colours.
_MOST_FEATURES, _MOST_CLASSES = 12, 20
_LOSS_CURE = "is recorded where a loss function is called"
_PHASES_CURE = "are recorded while the profiler is on, but not of very short steps"


class Plots:
    """Each method answers one question about a run with a ``plotly.graph_objects.Figure``.

    Made by ``run.plot``. Figures are those of the report and of the dashboard. A method raises
    :class:`~watchglass.UnknownNameError` where the run lacks the records, with the setting that records them.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def losses(self, *, smooth: float = 0.0) -> Figure:
        """Does the loss fall, in training and in evaluation, and where did rules find something?

        Args:
            smooth: Training losses are smoothed over so many steps, with the raw ones behind them; 0 for not at all.
        """
        return self._figure(loss_figure(self._run, self._run.journal.findings, smooth=smooth), "loss", _LOSS_CURE)

    def accuracy(self) -> Figure:
        """Which share of the predictions is right?"""
        return self._figure(
            accuracy_figure(self._run), "accuracy", "is recorded where a loss function gets classes as labels"
        )

    def learning_rates(self) -> Figure:
        """How did the schedules change the learning rates?"""
        return self._figure(learning_rate_figure(self._run), "learning rate", "is recorded of optimizers")

    def gradient_norms(self) -> Figure:
        """How large are all gradients of a model together, before and after clipping?"""
        return self._figure(gradient_norm_figure(self._run), "norm of gradients", "is recorded with gradients")

    def story(self) -> Figure:
        """What happened at which step? Loss, causes, findings, learning rate, phases, memory, evaluations as lanes."""
        verdict = named("watchglass.diagnose:verdict")(self._run)
        courses = named("watchglass.diagnose:cause_courses")(self._run, verdict)
        story = story_figure(self._run, verdict, courses)
        return self._figure(story, "training steps", "are recorded of every training")

    def layers(
        self, role: str = "gradient", reduction: str = "l2", *, relative: bool = False, depth: int | None = None,
        within: str = "",
    ) -> Figure:  # fmt: skip
        """In which layer, and since when, is a number unusual? Findings are outlined.

        Args:
            role: ``"gradient"``, ``"update"``, ``"weight"`` or ``"output"``.
            reduction: ``"l2"`` of gradients and weights, ``"ratio"`` of updates, ``"std"``, ``"zeros"`` or
                ``"inactive"`` of outputs.
            relative: Against each tensor's own median, instead of absolute.
            depth: One row for each module at this depth of the tree of modules: 1 for the children of the model. Its
                cells are the worst of its tensors: the smallest gradient or deviation, the greatest update, weight or
                share of zeros; with ``relative`` the one farthest from its own median.
            within: Only the tensors of this module and of those in it.

        Raises:
            InvalidValueError: Another pair, or a depth below 1.
            UnknownNameError: None was captured, or none within the module.
        """
        field = f"{role}.{reduction}"
        if field not in LAYER_FIELDS:
            known = ", ".join(repr(tuple(each.split("."))) for each in LAYER_FIELDS)
            raise InvalidValueError(f"layers has the fields {known}, but got {(role, reduction)!r}")
        grid = layer_grid(
            self._run, field, relative=relative, findings=self._run.journal.findings, depth=depth, within=within
        )
        return self._figure(grid, LAYER_FIELDS[field].name, f"needs {role}s in a collection")

    def distribution(self, tensor: str) -> Figure:
        """How did the elements of a tensor spread over time? Extremes, mean, deviation and quantiles.

        Args:
            tensor: Its name.
        """
        found = distribution_figure(self._run, tensor)
        picture = None if found is None else found.picture
        return self._figure(picture, f"statistics of {tensor}", "are recorded of tensors in a collection")

    def update_ratios(self) -> Figure:
        """Do updates have a usual size, 1e-4 to 1e-1 of the weight?"""
        return self._figure(update_ratio_figure(self._run), "update", "needs the collection updates")

    def confusion(
        self, mode: Mode | str | None = None, steps: Range | None = None, worker: str | None = None, model: int = 0
    ) -> Figure:
        """Which classes does the classifier take for which? Of the last evaluation, unless told otherwise.

        Args:
            mode: Of which steps; None for evaluations if these have predictions, else training.
            steps: Which of these.
            worker: Whose.
            model: Number of the model, 0 for the first.

        Raises:
            UnknownNameError: Predictions and labels were not saved as whole tensors.
            InvalidValueError: They are not those of a classifier.
        """
        found = confusion(self._run, None if mode is None else Mode.of(mode), steps, worker, model)
        figure = figure_of(confusion_grid(found))
        figure.update_traces(text=found.counts, texttemplate="%{text}")
        figure.add_annotation(
            text=confusion_sentence(found), xref="paper", yref="paper", x=0, y=-0.02, yanchor="top", yshift=-40,
            showarrow=False,
        )  # fmt: skip
        figure.update_layout(height=figure.layout.height + 40, margin_b=90)
        return figure

    def activations(
        self, tensor: str, step: int | None = None, mode: Mode | str = Mode.TRAIN, example: int = 0
    ) -> Figure:
        """What does a layer see in one example? Its channels as images, each scaled to its own range.

        Args:
            tensor: Name of an output that was saved as a whole.
            step: At which step; None for the last that has it.
            mode: Of which steps.
            example: Which of the batch, from 0 on.
        """
        return figure_of(activations_image(self._run, tensor, step, Mode.of(mode), example))

    def saliency(self, step: int | None = None, mode: Mode | str = Mode.TRAIN, model: int = 0) -> Figure:
        """Which pixels of an input does the loss depend on? Inputs beside the size of their raw gradients.

        Args:
            step: At which step; None for the last that has both.
            mode: Of which steps.
            model: Number of the model, 0 for the first.
        """
        return figure_of(saliency_image(self._run, step, Mode.of(mode), model))

    def embedding(
        self, tensor: str, method: str = "pca", mode: Mode | str = Mode.TRAIN, steps: Range | None = None,
        worker: str | None = None,
    ) -> Figure:  # fmt: skip
        """How do classes part in a latent space, step by step? With a slider over the saved steps.

        Args:
            tensor: Name of a tensor that was saved as a whole; its first axis are examples.
            method: ``"pca"``, ``"tsne"`` (scikit-learn) or ``"umap"`` (umap-learn).
            mode: Of which steps.
            steps: Which of these.
            worker: Whose.
        """
        frames = embedding(self._run, tensor, method=method, mode=Mode.of(mode), steps=steps, worker=worker)
        pictures = [(str(frame.step), _points(frame, frames, tensor)) for frame in frames]
        return animated(pictures, f"{tensor} by {method}")

    def feature_importance(self, kind: str | None = None) -> Figure:
        """Which features do boosted trees use, round by round?

        Args:
            kind: ``"weight"``, ``"gain"`` and so on; None for the first that was recorded.
        """
        known = self._run.tensor_names(regex=r"(^|/)feature_importance/")
        name = next((each for each in known if kind is None or each.endswith(f"/{kind}")), None)
        if name is None:
            cure = f"it has {', '.join(known)}" if known else "it is recorded of boosted trees"
            raise UnknownNameError(
                f"{self._run.location} has no feature importance{f' {kind!r}' if kind else ''}; {cure}"
            )
        values = self._run.tensor(name).values(as_float32=True)
        steps = np.array(list(values), np.float64)
        matrix = np.stack([np.asarray(each, np.float64).reshape(-1) for each in values.values()])
        order = np.argsort(matrix[-1])[::-1][:_MOST_FEATURES]
        lines = tuple(
            Line(f"feature {feature}", steps, matrix[:, feature], colour)
            for feature, colour in zip(order.tolist(), shades(len(order)), strict=True)
        )
        return figure_of(Lines(name, Axis("training step", whole=True), Axis("importance"), lines))

    def timeline(self) -> Figure:
        """Where did the time of training steps go: data, forward, backward, update?"""
        figure = phases_figure(self._run, self._run.journal.findings)
        return self._figure(figure, "phases of steps", _PHASES_CURE)

    def durations(self) -> Figure:
        """How evenly long are steps?"""
        return self._figure(durations_figure(self._run), "durations of steps", _PHASES_CURE)

    def system(self, stream: str = "system") -> Figure:
        """Were processor, memory and GPU busy?

        Args:
            stream: The stream of a machine, one of ``run.streams``.
        """
        figure = machine_figure(self._run, stream, self._run.journal.findings)
        known = f"; its streams are {', '.join(self._run.streams)}" if self._run.streams else ""
        return self._figure(figure, f"metrics of {stream}", f"are recorded while the profiler is on{known}")

    def compare(self, other: Run, metric: str = "loss", by: str = "step") -> Figure:
        """Which of two runs learns faster? One number of both, over steps or time; each has the colour of its run.

        Args:
            other: The other run.
            metric: Name of a scalar.
            by: ``"step"``, or ``"time"`` since the first step.

        Raises:
            InvalidValueError: Another axis, or what is no run.
            UnknownNameError: Neither run has the scalar.
        """
        if not isinstance(other, type(self._run)):
            raise InvalidValueError(f"other must be a run but got {other!r:.200}; open it with watchglass.open_run")
        runs = {run.location: run for run in (self._run, other)}
        if by not in BY:
            raise InvalidValueError(f"by must be one of {', '.join(BY)}, but got {by!r}")
        cure = (
            _LOSS_CURE if metric == "loss" else "neither run has saved; run.tensor_names(role='metric') has the names"
        )
        return self._figure(compared_curves(runs, metric, by), metric, cure)

    def _figure(self, picture: Picture | None, what: str, when: str) -> Figure:
        if picture is None:
            raise UnknownNameError(f"{self._run.location} has no {what}, which {when}")
        return figure_of(picture)


def _points(frame: EmbeddedStep, frames: Sequence[EmbeddedStep], tensor: str) -> Points:
    """One step's points by class; all steps have the same groups."""
    x, y = frame.points.T
    labels = [each.labels for each in frames if each.labels is not None]
    classes = np.unique(np.concatenate(labels)).tolist() if len(labels) == len(frames) else []
    if frame.labels is None or not 0 < len(classes) <= _MOST_CLASSES:
        groups = [PointGroup("examples", x, y, shades(3)[1])]
    else:
        which = [frame.labels == label for label in classes]
        groups = [
            PointGroup(f"label {label}", x[own], y[own], colour)
            for label, own, colour in zip(classes, which, shades(len(classes)), strict=True)
        ]
    return Points(f"{tensor} at step {frame.step}", Axis(), Axis(), tuple(groups))
