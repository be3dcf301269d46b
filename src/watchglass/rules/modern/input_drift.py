"""InputDrift: the inputs have another distribution than those that the model was trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts
from watchglass.rules import signals
from watchglass.rules.modern.input_rows import row_of, stability_index
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Different sketches of each side that are compared, at least, and kept.
_LEAST, _MOST = 3, 64
#: Fewest sampled values of a side, and of a feature of it.
_VALUES = 200
#: The side of EVAL steps without a loss.
_WITHOUT_LOSS = "EVAL without loss"
#: Standard errors of the difference of two means up to which it may be chance.
_ERRORS = 4.0


class _Drift(NamedTuple):
    psi: float
    #: The feature that drifts most, if one drifts more than all values together.
    feature: int | None
    now: tuple[float, float]
    before: tuple[float, float]


class InputDrift(Rule):
    """The model gets inputs of another distribution than in training, or than in another run.

    Looks at: sketches of the first float input. Those of predictions are compared with those of training and of
        evaluations, those of evaluations with those of training. With `other_run`, those of each mode are compared with
        those of the same mode there, step by step. PyTorch does not say what a prediction is: the EVAL steps without a
        loss after the last training step count as predictions, at the end of the run. If such steps also came before,
        the run acts or generates, and they are not judged.
    Fires when: the population stability index exceeds `limit`, of all values or of one feature or channel. That of a
        feature is the squared difference of the means over the mean variance, as for two normal distributions. The
        index between halves of the same inputs is subtracted, and a difference of means counts from four standard
        errors on. It is an `info` for evaluations of anything but tables, since augmented training inputs differ from
        them by intent. TrainEvalShift judges these: it reports another scale or a missing transform, from a twofold
        difference on.
    Usual causes: data of another time or source, a changed unit, a column that is missing and filled with a constant.
    What to try: look at the named feature in both data sets; train again with data of the new kind.
    Costs: a copy of at most 64 KiB of the inputs at about 80 of 5,000 steps; the evaluator reads the other run too.
    Source: house, and the usual limit for credit scores: `limit` of 0.2; house: standard errors.
    """

    needs = (
        Needs(facts=("input_sketch",), modes=(Mode.TRAIN, Mode.EVAL, Mode.PREDICT), why="to compare inputs"),
        Needs(scalars=("loss",), optional=True, modes=(Mode.EVAL,), why="to know evaluations from other uses"),
    )  # fmt: skip
    compares = ("other_run",)

    limit: float = parameter(0.2, help="population stability index", gt=0)
    other_run: str = parameter("", help="location of a run whose inputs are the reference; empty for this run alone")

    #: By side (``"TRAIN/0"``, ``"other TRAIN/0"``): the latest different sketches, each with ``row``, ``values``,
    #: ``means`` and ``spreads`` of its features, and whether it is of a ``table``.
    seen: dict[str, list[dict[str, Any]]] = state(dict)
    compared: bool = state(bool)
    #: Whether steps without a loss came between training steps.
    between: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings at a step whose inputs were sketched."""
        other = view.reference("other_run") if self.other_run else None
        for sketch in other.facts(facts.InputSketch) if other is not None else ():
            self._keep(f"other {view.mode.name}/{sketch.tensor}", sketch)
        without_loss = not self.other_run and not self._has_loss(view)
        self.between |= view.mode is Mode.TRAIN and any(side.startswith(_WITHOUT_LOSS) for side in self.seen)
        if view.in_turns:
            return
        for sketch in view.facts(facts.InputSketch):
            path = sketch.tensor
            if without_loss:
                self._keep(f"{_WITHOUT_LOSS}/{path}", sketch)
                continue
            if not self._keep(f"{view.mode.name}/{path}", sketch):
                continue
            if self.other_run:
                yield from self._judge(view, f"{view.mode.name}/{path}", [f"other {view.mode.name}/{path}"])
            elif view.mode is not Mode.TRAIN:
                earlier = (Mode.TRAIN,) if view.mode is Mode.EVAL else (Mode.TRAIN, Mode.EVAL)
                yield from self._judge(view, f"{view.mode.name}/{path}", [f"{mode.name}/{path}" for mode in earlier])

    def finish(self, view: StepView) -> Iterable[Finding]:
        """Findings about the steps without a loss after the last training step."""
        for side in [side for side in self.seen if side.startswith(_WITHOUT_LOSS) and not self.between]:
            path = side.partition("/")[2]
            yield from self._judge(view, side, [f"{mode.name}/{path}" for mode in (Mode.TRAIN, Mode.EVAL)])

    def applicable(self, view: StepView) -> str:
        """Not without enough sketches of two kinds of inputs."""
        if self.compared:
            return ""
        return "too few different inputs to compare were sketched: floats of this run and of the inputs before them"

    @staticmethod
    def _has_loss(view: StepView) -> bool:
        """Not samples of a generative model, an agent that acts, or predictions."""
        return view.mode is not Mode.EVAL or any(name.startswith("loss") for name in view.scalars())

    def _keep(self, side: str, sketch: facts.InputSketch) -> bool:
        """Keep a sketch unless it is of the same inputs as one before."""
        row, kept = row_of(sketch), self.seen.setdefault(side, [])
        if row is None or any(row == each["row"] for each in kept):
            return False
        channels = sketch.channels or facts.SketchedUnits()
        about = {
            "table": len(sketch.shape) == 2,
            "row": row,
            "values": sketch.sampled,
            "means": list(channels.mean),
            "spreads": list(channels.std),
        }
        self.seen[side] = [*kept, about][-_MOST:]
        return True

    def _judge(self, view: StepView, side: str, references: list[str]) -> Iterable[Finding]:
        now, of_mode = self.seen[side], side.partition("/")[0]
        earlier = [self.seen.get(side, []) for side in references]
        found = [_drift(before, now) for before in earlier if _enough(before) and _enough(now)]
        self.compared |= bool(found)
        # Inputs that are like those of any mode before have not drifted: predictions have no augmentation, for example.
        drift = min(found, key=lambda each: each.psi, default=None)
        if drift is None or not drift.psi > self.limit:
            return
        table, predicted = now[-1]["table"], of_mode == _WITHOUT_LOSS
        augmented = of_mode in (Mode.EVAL.name, _WITHOUT_LOSS) and not self.other_run and not table
        steps = "EVAL steps without a loss, after training," if predicted else f"{of_mode} steps"
        where = f"those of {self.other_run}" if self.other_run else "training"
        of = "" if drift.feature is None else f" in {'feature' if table else 'channel'} {drift.feature}"
        yield self.finding(
            view,
            severity=Severity.INFO if augmented else Severity.WARNING,
            subject="inputs",
            value=drift.psi,
            limit=self.limit,
            message=(
                f"the inputs of {steps} have drifted from {where}{of}: their mean is {drift.now[0]:.3g} "
                f"and their standard deviation {drift.now[1]:.3g}, before {drift.before[0]:.3g} and "
                f"{drift.before[1]:.3g} (population stability index {drift.psi:.2g})"
            ),
            symptoms=() if augmented else ("inputs_drifted",),
            evidence={"now": [*drift.now], "before": [*drift.before], **signals.evidence(view)},
        )


def _enough(side: list[dict[str, Any]]) -> bool:
    return len(side) >= _LEAST and sum(each["values"] for each in side) >= _VALUES


def _drift(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> _Drift:
    rows, others = ([each["row"] for each in side] for side in (before, now))
    by_chance = max(stability_index(side[::2], side[1::2]) for side in (rows, others))
    index = stability_index(rows, others) - by_chance
    (mean, spread), (mean_now, spread_now) = (np.median(np.asarray(side)[:, :2], axis=0) for side in (rows, others))
    whole = _Drift(index, None, (float(mean_now), float(spread_now)), (float(mean), float(spread)))
    return max([whole, *_features(before, now)], key=lambda each: each.psi)


def _features(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterable[_Drift]:
    """The drift of each feature or channel that has enough values."""
    number = len(before[0]["means"])
    sides = [[each for each in side if len(each["means"]) == number] for side in (before, now)]
    if not number or any(
        len(side) < _LEAST or sum(each["values"] for each in side) < number * _VALUES for side in sides
    ):
        return
    means = [np.asarray([each["means"] for each in side]) for side in sides]
    spreads = [np.asarray([each["spreads"] for each in side]) for side in sides]
    centre = [each.mean(axis=0) for each in means]
    variance = [np.square(of).mean(axis=0) + each.var(axis=0) for of, each in zip(spreads, means, strict=True)]
    error = np.sqrt(sum(each.var(axis=0, ddof=1) / len(each) for each in means))
    apart = np.abs(centre[1] - centre[0])
    # A feature without any spread on both sides is compared as if it had a millionth of its size.
    usual = np.maximum((variance[0] + variance[1]) / 2, np.square(1e-6 * np.maximum(*map(np.abs, centre)) + 1e-30))
    index = np.where(apart > _ERRORS * error, np.square(apart) / usual, 0.0)
    worst = int(np.argmax(index))
    first, second = ((float(c[worst]), float(np.sqrt(v[worst]))) for c, v in zip(centre, variance, strict=True))
    yield _Drift(float(index[worst]), worst, second, first)
