"""The needs of rules: whether a run has the data, and why a rule starves.

The fact ``capture_plan`` lists what a run captures, so most starving rules are known at the first step. Without this
fact (no hook recorded the run), or where planned data never comes, a few steps show it.
"""

from __future__ import annotations

from typing import Any

from watchglass.config import BUILT_IN_COLLECTIONS, FACTS, Schedule
from watchglass.evaluate.engine.rule_status import Met
from watchglass.records import Mode, Role, RowKind, RowsHaving, count, facts
from watchglass.rules import Needs, collections_for, without_kinds, without_layers
from watchglass.tables import Selection, StepView

#: Captures of a planned collection without the needed data, after which the data is not expected any more.
_FEW_DUE = 4
#: Captured steps without the needed data, where there is no plan.
_FEW_CAPTURES = 8
#: Steps without a scalar that comes at every step.
_FEW_STEPS = 8
#: Steps without data that may be rare: facts, units, scalars that a script saves.
_MANY_STEPS = 64

#: Scalars that every step has.
_RATES = frozenset({"learning_rate", "learning_rate/0"})
_EVERY_STEP = _RATES | {"loss"}
_MODE_NAMES = {Mode.TRAIN: "train", Mode.EVAL: "eval", Mode.PREDICT: "predict"}
_IN_MODE = {Mode.TRAIN: "", Mode.EVAL: " in evaluation", Mode.PREDICT: " in prediction"}
#: Roles of tensors in a collection that selects by structure alone.
_OF_TAGS = frozenset(Role) - {
    Role.WEIGHT, Role.BIAS, Role.UPDATE, Role.OUTPUT, Role.OPTIMIZER_STATE, Role.LABEL, Role.PREDICTION
}  # fmt: skip
#: Roles that only a model with layers has.
_OF_LAYERS = frozenset(
    {Role.WEIGHT, Role.BIAS, Role.GRADIENT, Role.UPDATE, Role.OUTPUT, Role.INPUT, Role.OPTIMIZER_STATE}
)
#: Recorded without any collection.
_UNPLANNED = frozenset({Role.LOSS, Role.METRIC, Role.CUSTOM})


class NeedSeen:
    """One need of a rule, for one model on one worker. For one thread."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs  #: The need.
        self.satisfied = False  #: Whether it was met at some step.
        self._selects = Selection(
            needs.role, regex=needs.name_regex, collection=needs.collection, module_kinds=needs.module_kinds
        )
        self._wants = self._selects.matcher()
        self._attempt = 0
        self._last_capture = -1
        self._gap = 0
        self._since = 0
        self._steps = self._captures = self._due = 0
        self._known: tuple[Any, str, bool] = None, "", False
        self._model: facts.ModelDescription | None = None
        self._plan: facts.CapturePlan | None = None
        #: Of the collections that may hold the data, in training.
        self._schedules: list[Schedule] = []
        self._waits_for_captures = needs.of_tensors and not needs.having and not needs.facts
        self._of_layers = needs.role in _OF_LAYERS or bool(needs.having or needs.module_kinds)
        self._no_layers = self._no_modules = ""
        self._kinds = needs.module_kinds or tuple(
            each.module_kind for each in needs.having if each.module_kind is not None
        )

    def look(self, view: StepView) -> None:
        """Takes in one step: every step until the need is met, and after that where the need has an interval."""
        if view.attempt < self._attempt:
            # It came after a later attempt had begun: then only its presence counts, which does not depend on order.
            self.satisfied = self.satisfied or (view.mode in self.needs.modes and self._present(view))
            return
        if view.attempt != self._attempt:
            # Its first step is not compared with the last capture of the attempt before.
            self._attempt, self._last_capture, self._gap, self._since = view.attempt, -1, 0, 0
        plan = view.latest_fact(facts.CapturePlan)
        if plan is not self._plan:
            self._plan, self._due = plan, 0
            self._schedules = [_schedule(planned) for planned in self._matching(Mode.TRAIN)]
        if (
            self._of_layers
            and not self.satisfied
            and (model := view.latest_fact(facts.ModelDescription)) is not self._model
        ):
            self._model = model
            self._no_layers, self._no_modules = without_layers(view), without_kinds(view, self._kinds)
        if view.mode not in self.needs.modes:
            return
        present = self._present(view)
        self._measure(view, present)
        self.satisfied = self.satisfied or present
        if not self.satisfied:
            self._steps += 1
            self._captures += view.captured > 0
            # A plan counts the TRAIN steps of a model.
            if self._waits_for_captures:
                self._due += any(each.holds(view.model_step, view.captured > 0) for each in self._schedules)

    @property
    def met(self) -> Met:
        """Its present state. The reason does not change with every further step."""
        needs, (reason, stays) = self.needs, self._reason()
        # An evaluation may come at any time, so only the end shows that there was none.
        shown = needs.modes == (Mode.TRAIN,) and (self.satisfied or self._waited_long())
        absent = bool(reason) and not stays and not self.satisfied and bool(self._lacking())
        return Met(self.satisfied, reason, not needs.optional and (stays or (shown and not absent)), absent)

    def _lacking(self) -> str:
        """What the script has not got, where the run records all of this need whatever its settings are; else ""."""
        if self._no_modules:
            return self._no_modules
        needs, plan = self.needs, self._plan
        if plan is None or needs.of_tensors or needs.rows:
            return ""
        if needs.facts:
            recorded = not needs.scalars and set(plan.facts).intersection(needs.facts)
            unseen = [FACTS[kind].UNSEEN for kind in needs.facts if kind in FACTS]
            clear = " and ".join(unseen) if all(unseen) else ""
            return (clear or f"{needs.describe()} never came") if recorded else ""
        if needs.scalars and _RATES.issuperset(needs.scalars):
            return "no optimizer with a learning rate was seen"
        evaluated = Mode.TRAIN in needs.modes or self._steps
        return "" if evaluated or not needs.scalars else "there was no evaluation"

    def _reason(self) -> tuple[str, bool]:
        """The reason, and whether it stays by the plan; worked out again where something has changed."""
        most = self.needs.max_interval
        late = most is not None and self._since > most
        state = (self.satisfied, self._plan, self._no_layers, self._no_modules, self._gap, late, self._steps == 0)
        if state != self._known[0]:
            self._known = (state, *self._worked_out())
        return self._known[1:]

    def _worked_out(self) -> tuple[str, bool]:
        needs, most = self.needs, self.needs.max_interval
        if needs.optional:
            return "", False
        why = f" (needed {needs.why})" if needs.why else ""
        if not self.satisfied:
            not_planned = "" if self._no_modules else self._not_planned()
            cure = "".join(kind.cure for kind in needs.rows if isinstance(kind, RowKind))
            never = self._lacking() or f"{needs.describe()} never came"
            return not_planned or f"{never}{why}{cure}", bool(not_planned)
        if most is not None and max(self._gap, self._since) > most:
            late = f"last came more than {count(most, 'step')} ago"
            often = f"came every {count(self._gap, 'step')}" if self._gap > most else late
            return f"{needs.describe()} {often}; at most {most} are useful{why}", False
        return "", False

    def _waited_long(self) -> bool:
        needs = self.needs
        if not self._waits_for_captures:
            every_step = not needs.having and not needs.facts and _EVERY_STEP.issuperset(needs.scalars)
            return self._steps >= (_FEW_STEPS if every_step else _MANY_STEPS)
        if self._schedules:
            return self._due >= _FEW_DUE
        return self._captures >= _FEW_CAPTURES or self._steps >= _MANY_STEPS

    def _not_planned(self) -> str:
        """Why the data cannot come, by the worker's plan; "" where it may."""
        plan, needs = self._plan, self.needs
        if self._no_layers:
            return f"{needs.describe()} cannot be captured: {self._no_layers}"
        if plan is None:
            return ""
        switched = [kind for kind in needs.facts if kind in FACTS]
        if switched and len(switched) == len(needs.facts) and not set(plan.facts).intersection(switched):
            recorded = ", ".join(sorted(plan.facts)) or "none"
            return (
                f"the fact {' or '.join(switched)} is not recorded: the facts of this run are {recorded}; "
                f"add {switched[0]} or leave facts to the rules"
            )
        if not needs.of_tensors or needs.role in _UNPLANNED:
            return ""
        if not plan.keeps_tensors:
            return f"{needs.describe()} are not captured: only one worker of this run keeps tensors"
        return self._uncollected(plan) or self._too_rare()

    def _uncollected(self, plan: facts.CapturePlan) -> str:
        needs = self.needs
        if any(self._matching(mode) for mode in needs.modes):
            return ""
        (mode, *_) = needs.modes
        names = dict.fromkeys(planned.name for planned in plan.collections.get(_MODE_NAMES[mode], ()))
        what = f"the collections of this run{_IN_MODE.get(mode, '')} are {', '.join(names) or 'none'}"
        add = " and ".join(collections_for(needs))
        also = f" with modes.{_MODE_NAMES[mode]}" if mode is not Mode.TRAIN and mode in _MODE_NAMES else ""
        cure = f"; add collection {add}{also} or leave collections to the rules" if add else ""
        return f"{needs.describe()} are not captured: {what}{cure}"

    def _too_rare(self) -> str:
        needs = self.needs
        if needs.max_interval is None or needs.modes != (Mode.TRAIN,):
            return ""
        intervals = [each.interval for each in self._schedules if not each.steps]
        known = [interval for interval in intervals if interval is not None]
        if not known or len(known) < len(self._schedules) or min(known) <= needs.max_interval:
            return ""
        return f"{needs.describe()} are kept every {min(known)} steps; at most {needs.max_interval} are useful"

    def _matching(self, mode: Mode) -> list[facts.PlannedCollection]:
        planned = self._plan.collections.get(_MODE_NAMES[mode], ()) if self._plan is not None else ()
        return [each for each in planned if _may_hold(each, self.needs)]

    def _measure(self, view: StepView, present: bool) -> None:
        if self.needs.max_interval is None:
            return
        since = view.model_step - self._last_capture if self._last_capture >= 0 else 0
        if present:
            self._gap, self._since, self._last_capture = since, 0, view.model_step
        else:
            self._since = since

    def _present(self, view: StepView) -> bool:
        needs = self.needs
        if needs.raw:
            return any(self._wants(info) for info in map(view.catalog.by_name, view.whole()) if info is not None)
        if needs.of_tensors and not needs.having:
            rows = view.statistics(
                needs.role, module_kinds=needs.module_kinds, name_regex=needs.name_regex, collection=needs.collection
            )
            if not len(rows):
                return False
        for kind in needs.rows:
            about = self._wants if isinstance(kind, RowsHaving) or kind.of_tensors else None
            if not any(about is None or about(row.tensor) for row in view.rows(kind)):
                return False
        if needs.scalars and all(view.scalar(name) is None for name in needs.scalars):
            return False
        return not needs.facts or any(view.latest_fact(kind) is not None for kind in needs.facts)


def _may_hold(planned: facts.PlannedCollection, needs: Needs) -> bool:
    """Whether a collection may hold needed data."""
    tags = set(planned.tags)

    def may_have(role: Role) -> bool:
        return role.value in planned.roles or bool(tags and not planned.roles and role in _OF_TAGS)

    if needs.collection is not None:
        wanted = BUILT_IN_COLLECTIONS.get(needs.collection)
        if wanted is None or needs.collection == planned.name or planned.name == "all":
            return True
        return bool(tags.intersection(wanted.tags)) or any(map(may_have, wanted.roles))
    if needs.role is not None:
        return may_have(needs.role)
    if needs.having:
        selected = (BUILT_IN_COLLECTIONS[each.collection].tags for each in needs.having if each.collection)
        return bool(tags.intersection(*selected)) or may_have(Role.OUTPUT) or may_have(Role.INPUT)
    return True


def _schedule(planned: facts.PlannedCollection) -> Schedule:
    interval = None if planned.interval is None else max(1, planned.interval)
    return Schedule(interval, planned.start, planned.end, tuple(sorted(planned.steps)))
