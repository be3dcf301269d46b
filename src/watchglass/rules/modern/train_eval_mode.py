"""TrainEvalMode: dropout and batch normalisation in the wrong mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watchglass.config import parameter
from watchglass.records import Finding, Mode, count, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView


class TrainEvalMode(Rule):
    """The model is evaluated in training mode, or trained in evaluation mode.

    Looks at: the training flags of modules that depend on them (dropout, batch normalisation), and losses of
        evaluations.
    Fires when: the whole model is in training mode at the end of an evaluation with a loss, and at least `min_steps`
        training steps preceded it. After at least 3 training steps each, the fourth such evaluation in a row is
        reported. Or the whole model is in evaluation mode at `min_steps` training steps in a row. If only some of its
        sensitive modules are in that mode (Monte Carlo dropout, frozen batch normalisation), this is intended. So is
        training in evaluation mode from the start with frozen parameters or with running statistics that were loaded
        (fine-tuning), and the mode of a part that runs without gradients. Forwards without gradients that belong to
        the training loop (pseudo-labels, the samples of a generator) do not count as evaluations.
    Usual causes: model.eval() or model.train() is missing, or is called only once before the loop. In Keras, a constant
        for the argument `training`, or a training step that does not pass it on.
    What to try: model.eval() before each evaluation, model.train() after it; in Keras, pass `training` on.
    Costs: the facts training_flags, 0.1 microseconds per module at captured steps, at the start of evaluations and
        where the mode of the whole model changes, and running_statistics, a few reductions at a handful of steps.
    Source: exact; PyTorch documentation of Module.train; house: `min_steps`.
    """

    needs = (
        Needs(facts=("training_flags",), why="to see the modes of modules"),
        Needs(facts=("running_statistics",), optional=True, why="to know normalisations that were trained before"),
        Needs(
            scalars=("loss",), modes=(Mode.EVAL,), optional=True, why="to distinguish an evaluation from other forwards"
        ),
    )

    min_steps: int = parameter(8, help="training steps in a row, or between two evaluations", unit="steps", ge=1)

    #: Latest flags by mode.
    flags: dict[Mode, facts.TrainingFlags] = state(dict)
    #: Whether the model was in training mode at a training step so far.
    trained: bool = state(bool)
    #: Whether running statistics were not at their initial values when training began; None before they are known.
    loaded: bool | None = state(lambda: None)
    #: Training steps in a row in evaluation mode.
    evaluating: Streaks = state(Streaks)
    #: Training steps since the last evaluation, and whether the steps of the current one had losses.
    steps: int = state(int)
    losses: int = state(int)
    before: int = state(int)
    #: Evaluations with losses after a few training steps each, all in training mode so far.
    repeated: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding, at a training step."""
        for flags in view.facts(facts.TrainingFlags):
            # Of forwards without gradients, the mode of a frozen encoder or a teacher is as intended in training.
            helps = view.mode is Mode.TRAIN and flags.gradients is False
            if flags.sensitive is not None and not helps:
                self.flags[view.mode] = flags
                if view.mode is Mode.TRAIN:
                    self.trained = self.trained or flags.training is True
        if view.mode is Mode.TRAIN:
            for statistics in view.facts(facts.NormalizationStatistics) if self.loaded is None else ():
                self.loaded = any(not each.initial for each in statistics.modules or ())
            if self.losses:
                yield from self._evaluated(view)
                self.losses = 0
            self.steps += view.covers
            yield from self._training(view)
        elif view.mode is Mode.EVAL:
            if self.steps:
                self.before, self.steps = self.steps, 0
            self.losses += view.scalar("loss") is not None

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding of an evaluation at the end."""
        if self.losses:
            yield from self._evaluated(view)

    def applicable(self, view: StepView) -> str:
        """Not without modules that depend on the mode."""
        if any(flags.sensitive for flags in self.flags.values()):
            return ""
        return "the model has neither dropout nor batch normalisation" if self.flags else ""

    def _evaluated(self, view: StepView) -> Iterable[Finding]:
        flags = self.flags.get(Mode.EVAL, facts.TrainingFlags())
        sensitive = flags.sensitive or {}
        if not flags.training or not _all(sensitive, 0):
            self.repeated = 0
            return
        self.repeated += self.before >= _FEW_STEPS
        # An epoch of a small data set has few steps.
        if self.before < self.min_steps and (self.before < _FEW_STEPS or self.repeated < _REPEATED):
            return
        modules = _named(sensitive)
        yield self.finding(
            view,
            subject="evaluation",
            value=float(sum(counts[0] for counts in sensitive.values())),
            limit=0.0,
            message=f"the model is evaluated in training mode after training step {view.train_step}: {modules} compute "
            "something else in evaluation mode",
            symptoms=("training_mode_in_evaluation",),
            evidence={"sensitive": modules, "train_step": view.train_step},
        )

    def _training(self, view: StepView) -> Iterable[Finding]:
        flags = self.flags.get(Mode.TRAIN)
        evaluating = flags is not None and not flags.training
        times = self.evaluating.follow(view.mode_step, evaluating, covers=view.covers)
        if flags is None or times < self.min_steps:
            return
        sensitive = flags.sensitive or {}
        if not _all(sensitive, 1) or ((flags.frozen_parameters or self.loaded) and not self.trained):
            return
        modules = _named(sensitive)
        start = f"since step {self.evaluating.since()}" if self.trained else "from the start"
        yield self.finding(
            view,
            subject="training",
            value=float(sum(counts[1] for counts in sensitive.values())),
            limit=0.0,
            message=f"the model is trained in evaluation mode {start}, up to step {view.mode_step}: {modules} compute "
            "something else in training mode",
            symptoms=("evaluation_mode_in_training",),
            evidence={"sensitive": modules},
            since=self.evaluating.since(),
        )


#: Training steps before an evaluation of a small data set, and how many such evaluations count.
_FEW_STEPS, _REPEATED = 3, 4


def _all(sensitive: Mapping[str, tuple[int, int]], place: int) -> bool:
    """Whether there are sensitive modules, and all are in training mode (place 0) or in evaluation mode (1)."""
    return bool(sensitive) and all(counts[place] > 0 and not counts[1 - place] for counts in sensitive.values())


def _named(sensitive: Mapping[str, tuple[int, int]]) -> str:
    return " and ".join(count(sum(counts), kind) for kind, counts in sensitive.items())
