"""Facts about what losses judge in compiled steps, and how many of their answers are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled.collecting import ObservedLoss, ValuePart
from watchglass.capture.compiled.reading import ByPart, is_floating, sampled, whole
from watchglass.capture.facts.answers import is_classification, share_of_right
from watchglass.capture.facts.judged_sketches import LossRows, SampleInputs
from watchglass.capture.facts.loss_calls import LossCalls
from watchglass.capture.planning.sketch_pace import SketchPace
from watchglass.record import CapturedRecords, DeferredFact, OpenStep
from watchglass.records import DeclaredFact, Mode, Role, facts, loss_kind

#: Losses of one step that are sketched, and elements of predictions up to which all answers are judged.
_MOST_LOSSES, _MOST_JUDGED = 4, 1 << 24


@dataclass
class _Judged:
    """A call of a loss function, with what was collected of it."""

    call: ObservedLoss
    model: int
    predictions: Any = None
    labels: Any = None


class JudgedValues:
    """Makes the facts ``loss_call``, ``output_sketch`` and ``target_sketch``, and the accuracy.

    For the training thread.

    Args:
        source: The source of facts.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._pace = SketchPace()
        self._calls = LossCalls()
        #: What made the predictions, by model and number of the call, as far as a program shows it.
        self.made_by: dict[tuple[int, int], tuple[str | None, int | None]] = {}

    def save(
        self, step: OpenStep, found: ByPart, batch: list[Any], kinds: frozenset[str], about: Callable[[int], int | None]
    ) -> None:
        """Add the facts of a step.

        Args:
            step: The step.
            found: Its values.
            batch: What its model takes.
            kinds: The kinds of facts that are wanted.
            about: The number of a model in facts.
        """
        judged = _calls(found)
        training = step.mode is Mode.TRAIN
        right = False
        for each in judged:
            if "loss_call" in kinds:
                self._add_call(step.records, each, training=training)
            right = right or self._add_accuracy(step.records, each, batch)
        if not {"output_sketch", "target_sketch"} & kinds:
            return
        models = sorted({each.model for each in judged} | {what.model for what, _ in _returned(found)})
        for model in models:
            if self._pace.due(step.mode, model, step.mode_step):
                given = _given(batch) if training and "output_sketch" in kinds else None
                rows = [_rows(each) for each in judged if each.model == model][:_MOST_LOSSES]
                if not any(rows):
                    rows = [
                        LossRows.of_values(sampled, value) for what, value in _returned(found) if what.model == model
                    ]
                for one in filter(None, rows):
                    self._add_sketches(step.records, one.with_inputs(given), kinds, about(model))

    def _add_call(self, records: CapturedRecords, judged: _Judged, *, training: bool) -> None:
        call = judged.call
        shapes = _classes_second(call.predictions, call.labels) if call.by_class else (call.predictions, call.labels)
        arguments = {
            name: facts.LossArgument(shape, dtype)
            for name, shape, dtype in zip(("input", "target"), shapes, call.dtypes, strict=True)
        }
        operation, over = call.operation, call.normalized_over
        if operation is None and training:
            operation, over = self.made_by.get((judged.model, call.number), (None, None))
        fact = self._calls.fact(
            call.function, arguments, training=training, result=call.result, operation=operation,
            normalized_over=over, reduction=call.reduction,
        )  # fmt: skip
        if fact is not None:
            records.add_fact(fact, self._source)

    def _add_accuracy(self, records: CapturedRecords, judged: _Judged, batch: list[Any]) -> bool:
        call, outputs, targets = judged.call, judged.predictions, judged.labels
        if outputs is None or targets is None or not 0 < math.prod(outputs.shape) <= _MOST_JUDGED:
            return False
        inputs = math.prod(batch[0].shape) if batch else 0
        if not is_classification(call.function, call.predictions, call.labels, inputs):
            return False
        if loss_kind(call.function).of_classes and not call.by_class:
            return False
        predictions, labels = whole(outputs), whole(targets)
        if predictions is None or labels is None:
            return False
        share = DeferredNumbers(
            lambda: share_of_right(call.function, predictions.numbers(), labels.numbers(), call.ignored),
            sum(getattr(each.array, "nbytes", 0) for each in (predictions, labels)),
        )
        rows = outputs.shape[0] if call.by_class else math.prod(outputs.shape)
        records.series.append(("accuracy", Role.METRIC, float(rows), share))
        return True

    def _add_sketches(
        self, records: CapturedRecords, judged: LossRows, kinds: frozenset[str], model: int | None
    ) -> None:
        makers: dict[type[DeclaredFact], Callable[[], Any]] = {
            facts.OutputSketch: judged.output_sketch, facts.TargetSketch: judged.target_sketch,
        }  # fmt: skip
        for kind, make in makers.items():
            if kind.KIND in kinds and (kind is facts.OutputSketch or judged.targets is not None):
                records.add_fact(DeferredFact[DeclaredFact](kind, _of_model(make, model)), self._source)


def _of_model(make: Callable[[], Any], model: int | None) -> Callable[[], Any]:
    def sketch() -> Any:
        made = make()
        return made and replace(made, model=model)

    return sketch


def _calls(found: ByPart) -> list[_Judged]:
    """The calls of loss functions, in order."""
    calls: dict[tuple[int, ObservedLoss], _Judged] = {}
    for part in (ValuePart.PREDICTIONS, ValuePart.LABELS):
        for what, value in found.get(part, ()):
            if what.call is None:
                continue
            judged = calls.setdefault((what.model, what.call), _Judged(what.call, what.model))
            if part is ValuePart.LABELS:
                judged.labels = value
            elif judged.predictions is None:
                judged.predictions = value
    # A step of several parts has the same call more than once, of other shapes.
    by_number = {(judged.model, judged.call.number): judged for judged in calls.values()}
    return [by_number[key] for key in sorted(by_number)]


def _returned(found: ByPart) -> list[Any]:
    """The first output of each model, where that is a tensor of floats."""
    outputs = [(what, value) for what, value in found.get(ValuePart.OUTPUT, ()) if what.place.is_root]
    first = {what.model: (what, value) for what, value in reversed(outputs)}
    return [pair for pair in first.values() if is_floating(pair[1]) and math.prod(pair[1].shape) > 1]


def _given(batch: list[Any]) -> SampleInputs | None:
    """Elements of the first tensor of floats, else of integers, that a batch of samples consists of."""
    found = sorted((each for each in batch if len(each.shape) > 1), key=lambda each: not is_floating(each))
    return SampleInputs.of(sampled, found[0]) if found and "complex" not in str(found[0].dtype) else None


def _rows(judged: _Judged) -> LossRows | None:
    call, outputs, targets = judged.call, judged.predictions, judged.labels
    if outputs is None or targets is None or not math.prod(outputs.shape) or not is_floating(outputs):
        return None
    settings: dict[str, Any] = {"unreduced": True} if call.result else {}
    if call.weighted:
        settings["weighted"] = True
    if call.smoothing:
        settings["smoothing"] = call.smoothing
    if call.by_class:
        rows = LossRows.of_classes(sampled, outputs, targets, call.function, call.number, call.ignored, settings)
        if rows is None:
            return None
        shape, target = _classes_second(call.predictions, call.labels)
        return replace(rows, shape=shape, target_shape=target)
    if not loss_kind(call.function).elementwise:
        return None
    return LossRows.of_values(sampled, outputs, targets, call.function, call.number, settings)


def _classes_second(predictions: tuple[int, ...], labels: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of predictions and labels with the classes in the second axis, and without an axis of one label."""
    if len(predictions) < 2:
        return predictions, labels
    first, *space, classes = predictions
    moved = (first, classes, *space)
    if labels == predictions:
        return moved, moved
    return moved, labels[:-1] if labels == (*predictions[:-1], 1) else labels
