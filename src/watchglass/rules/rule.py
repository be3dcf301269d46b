r"""The contract of a rule: it sees the moments of a training run in order and returns findings.

A rule is a final class with typed parameters and declared state::

    class LossTooHigh(Rule):
        '''The loss is above a limit.'''

        needs = (Needs(scalars=("loss",)),)
        limit: float = parameter(10.0, help="highest loss that is fine", gt=0)
        seen: int = state(int)

        def check(self, view):
            loss = view.scalar("loss")
            if loss is not None and loss > self.limit:
                self.seen += 1
                yield self.finding(view, message=f"the loss is {loss:.3g}", value=loss)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from watchglass.config import Plugin, dataclass_transform, parameter, values
from watchglass.errors import InvalidValueError
from watchglass.records import Finding, Mode, Severity, facts
from watchglass.rules.already import already
from watchglass.rules.knowledge import built_in_knowledge
from watchglass.rules.needs import Needs, Windows
from watchglass.tables import Between, JointStep, StepView, Tick, Window

T = TypeVar("T")
_STATE = "watchglass.state"
#: The methods of which a rule needs one.
METHODS = ("check", "check_step", "check_window", "tick")


def state(default_factory: Callable[[], T]) -> T:
    """A field that a rule keeps from step to step: dicts, lists, tuples, strings, numbers, booleans and None.

    Records and NumPy arrays are allowed too. No state outlives the evaluator, which reads a run again from its start.
    The field is no parameter and not part of the constructor.
    """
    field: T = dataclasses.field(
        init=False, repr=False, compare=False, default_factory=default_factory, metadata={_STATE: True}
    )
    return field


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(parameter, state))
class Rule(Plugin):
    """A check of a training run. Subclasses become keyword-only dataclasses automatically.

    A rule has one or more of :meth:`check`, :meth:`check_step`, :meth:`check_window` and :meth:`tick`; :meth:`check`
    may only be combined with :meth:`tick`. An instance with :meth:`check` sees the steps of one model on one worker of
    one attempt, in canonical order, live as in replay. An instance with :meth:`check_step` sees the steps of one model
    on all workers that train together. A rule with neither method has one instance for all workers that train together.
    Instances are independent. A rule does no I/O, reads no clock and raises no exception as a signal; an exception is a
    fault and gives status ``Error``.

    Attributes:
        needs: The data that it reads.
        modes: The modes of the steps that :meth:`check` or :meth:`check_step` is called for.
        calibrations: What another calibration changes, by its name: values of parameters, ``{"sagemaker": {"threshold":
            1e-7}}``, or another rule of the same name, for another algorithm with its own parameters and needs.
        streams: The kinds of rows and the length of the windows that :meth:`check_window` and :attr:`StepView.streams`
            show; None for none: then no stream is read.
        compares: Parameters that hold the location of another run, whose steps come with every view, see
            :meth:`StepView.reference`; "" for none.
        starts_with: ``"stage"`` or ``"task"`` for a rule that compares losses, gradients or updates with earlier ones:
            each stage of the training (:attr:`StepView.stage`), or each whose loss does not go on from that of the
            stage before (:attr:`StepView.task`), gets a new instance, and at its end :meth:`finish` is called. "" for
            a rule with one instance for all of them.
        idle_at_plain_steps: Whether :meth:`check` or :meth:`check_step` neither finds nor remembers anything at a step
            with scalars alone (:attr:`StepView.is_plain`). Most steps are plain, and an idle rule is not called there.
    """

    needs: ClassVar[tuple[Needs, ...]] = ()
    modes: ClassVar[Collection[Mode]] = tuple(Mode)
    calibrations: ClassVar[Mapping[str, Mapping[str, Any] | type[Rule]]] = {}
    streams: ClassVar[Windows | None] = None
    compares: ClassVar[tuple[str, ...]] = ()
    starts_with: ClassVar[Literal["", "stage", "task"]] = ""
    idle_at_plain_steps: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for method in ("check_step", "check_window"):
            if cls.check is not Rule.check and getattr(cls, method) is not getattr(Rule, method):
                raise InvalidValueError(
                    f"{cls.__name__} has check and {method}; a rule has one of them: check to see each worker "
                    f"separately, {method} to see all workers at once"
                )
        super().__init_subclass__(**kwargs)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings at this step of one worker. Called once for every complete step of :attr:`modes`."""
        return ()

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """Findings at this step of all workers that train together. Called once for every one of :attr:`modes`."""
        return ()

    def check_window(self, window: Window) -> Iterable[Finding]:
        """Findings in this window. Called after the end of each window in which a stream wrote rows."""
        return ()

    def tick(self, tick: Tick) -> Iterable[Finding]:
        """Findings while no step is completed. Called after 1 s, then at intervals that double up to 60 s."""
        return ()

    def finish(self, view: Any) -> Iterable[Finding]:
        """Findings at the end of the attempt.

        Args:
            view: The last training step (without one, the last step) with the last stretches, again: a
                :class:`StepView` for a rule with :meth:`check`, else a :class:`JointStep` of those of all workers.
        """
        return ()

    def applicable(self, view: Any) -> str:
        """The reason why this rule does not apply to this run (no ReLU in the model); "" if it applies.

        Called at the end of the run if the rule has no findings.
        """
        return ""

    def finding(
        self,
        view: StepView | JointStep | Between,
        *,
        message: str,
        severity: Severity = Severity.WARNING,
        subject: str = "",
        tensors: Sequence[str] = (),
        value: float | None = None,
        limit: float | None = None,
        symptoms: Sequence[str] = (),
        causes: Sequence[str] = (),
        what_to_try: Sequence[str] = (),
        evidence: Mapping[str, Any] | None = None,
        since: int | None = None,
        of_model: bool = True,
    ) -> Finding:
        """A finding at this step, or between two steps.

        Args:
            view: What was shown. The finding names its worker, or none where it shows the ranks of a run together. One
                between two steps is of the last step that this instance saw.
            message: One sentence for people. Numbers in it are fine: the first one seen is kept. The name of the model
                is put before it where there are several.
            severity: Its severity; a warning unless another one is given.
            subject: Identifies repeats: findings of one rule, severity and subject fold into one. The first tensor if
                "".
            tensors: Names of tensors or modules, as the view calls them, the first one first.
            value: The measured value.
            limit: The limit that it crossed.
            symptoms: Identifiers from the knowledge of causes, by which a diagnosis ranks causes.
            causes: Likely causes, most likely first; by default those that the symptoms speak for.
            what_to_try: Sentences; by default those of the likeliest cause.
            evidence: Further plain JSON values.
            since: The step, of the mode of the view, from which on what was found was so; None if it began at this step
                or that is not known. What the program itself shows in training has been so since the first step of its
                model, so that this is the default for such symptoms.
            of_model: Whether it concerns the model of the view; False for what the process or the machine does.
                Findings of a rule with neither :meth:`check` nor :meth:`check_step` never concern a model.
        """
        subject = subject or (tensors[0] if tensors else "")
        run_id, attempt = view.run_id, view.attempt
        of_model = of_model and (type(self).check is not Rule.check or type(self).check_step is not Rule.check_step)
        at = view.last if isinstance(view, Between) else view
        first = at.first if isinstance(at, JointStep) else at
        if isinstance(at, JointStep) and not of_model:
            # At the end of a run each model has its last step, and that of the process is the last of all.
            first = max((each for each in at.views if each.worker == at.first.worker), key=lambda each: each.order)
        about = first.latest_fact(facts.ModelDescription) if first is not None else None
        framework = about.framework if about is not None else ""
        knowledge = built_in_knowledge(trees=about is not None and about.trees is True)
        done = already(first) if of_model and first is not None and (causes or symptoms) else []
        ranked = tuple(causes) or knowledge.likely(symptoms, done)
        advice = tuple(what_to_try) or (knowledge.advise(ranked[0], {}, done, framework) if ranked else ())
        from_start = _from_start(first, symptoms) if of_model and first is not None else None
        since = min((each for each in (since, from_start) if each is not None), default=None)
        worker = at.worker if at is not None else view.worker
        mode, step = (first.mode, first.mode_step) if first is not None else (Mode.TRAIN, -1)
        model = (first.model if first is not None else 0) if of_model else None
        identity = (
            run_id, attempt, self.name, values(self), severity.value, subject, worker, mode.name, step,
            *([model] if model else []),
        )  # fmt: skip
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
        return Finding(
            id=digest[:12], rule=self.name, severity=severity,
            step=step, last_step=step, count=1, mode=mode, worker=worker,
            tensors=tuple(first.recorded_name(name) if first is not None else name for name in tensors),
            value=value, limit=limit,
            message=f"{first.model_name}: {message}" if of_model and first is not None and first.several else message,
            causes=ranked, what_to_try=advice, attempt=attempt,
            global_step=first.global_step if first is not None else -1,
            evidence={
                **({"since_step": since} if since is not None else {}), **({"already": done} if done else {}),
                **({"framework": framework} if framework else {}),
                **(evidence or {}),
                "subject": subject, "symptoms": list(symptoms),
            },
            model=model,
        )  # fmt: skip


def state_of(rule: Rule) -> dict[str, Any]:
    """What a rule keeps from step to step, by field."""
    return {each.name: getattr(rule, each.name) for each in dataclasses.fields(rule) if _STATE in each.metadata}  # type: ignore[arg-type]


def _from_start(view: StepView, symptoms: Sequence[str]) -> int | None:
    """The first training step of a model whose program itself shows a symptom; None where it may have begun later."""
    # Another task may have another loss, other labels and other layers.
    if (
        view.mode is not Mode.TRAIN
        or view.in_turns
        or view.task
        or not built_in_knowledge().proven_from_start(symptoms)
    ):
        return None
    before = view.latest_fact(facts.Resumed)
    first = view.mode_step - view.model_step
    return max(first, before.start_step) if before is not None and before.start_step is not None else first
