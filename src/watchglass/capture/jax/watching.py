"""The steps of a training run in JAX: which calls are steps, what they do, and what is saved of them."""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled.collecting import Collected, ValuePart, Values
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.compiled.twin import Twin
from watchglass.capture.frameworks import FRAMEWORKS
from watchglass.capture.hidden_steps import HiddenFunctions
from watchglass.capture.jax.batches import given_batch
from watchglass.capture.jax.functions import NO_STEP, About, Outcome, copied
from watchglass.capture.jax.jitted import Watched
from watchglass.capture.jax.known_functions import KnownFunctions, running
from watchglass.capture.jax.lineages import ModelLineage
from watchglass.capture.jax.profiler import JaxProfiler
from watchglass.capture.jax.step_values import JaxStepValues
from watchglass.capture.jax.tracing import GRADIENT, TRACING, UPDATE, traced
from watchglass.capture.jax.trees import dotted, named_leaves
from watchglass.capture.port import Port
from watchglass.record import OpenStep
from watchglass.records import Mode
from watchglass.store import ABSENT

_log = logging.getLogger("watchglass")
(_OUTSIDE, _) = FRAMEWORKS["jax"].hidden

_AVERAGES = frozenset((ValuePart.MEAN, ValuePart.VARIANCE))

#: Calls with a gradient that one update may follow, where no update was seen yet.
_MOST_PARTS = 16


@dataclass(eq=False)
class PartialStep:
    """What is known so far of a step whose update has not come.

    Attributes:
        about: What the calls do.
        step: The step, if something of it is due.
        losses: The loss of each call.
        values: The values of each call.
        update: What is known of the call that updates, where a separate function does that.
    """

    about: About
    step: OpenStep | None
    losses: list[Any] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    update: About | None = None


class Watching:
    """Watches all loops of a process through one port. For the training thread.

    Args:
        port: Gets the steps.
    """

    def __init__(self, port: Port) -> None:
        self.port = port
        self.steps = CompiledSteps(port, JaxProfiler(port))
        self.advisers: set[str] = set()  #: Names of libraries that advise.
        self._hidden = HiddenFunctions(port)
        self._functions = KnownFunctions(port, self._hidden)
        self._values = JaxStepValues(port, self._functions, self.steps)
        self._part: PartialStep | None = None
        self._called = NO_STEP  # what the call does that runs now
        self._updates_so_far: Counter[int] = Counter()  # by model
        # Of several steps in a call: the first and its number, and the number of the last one that is due.
        self._first: OpenStep | None = None
        self._first_number, self._due_at = 0, -1
        # Whether updates are separate calls; None until that is known.
        self._apart: bool | None = None
        # Names of what is not recorded, each of which is reported once.
        self._lost: set[str] = set()
        guarded = port.guarded
        self._known, self._begins, self._ends = guarded(self._functions.about), guarded(self._begin), guarded(self._end)
        self._updates, self._begins_gradient = guarded(self._update), guarded(self._begin_gradient)
        self._begins_several, self._ends_several = guarded(self._begin_several), guarded(self._end_several)
        # Shielded, which costs less: they observe nothing that could observe itself.
        shielded = port.guard.shielded
        self._begins_row, self._ends_row = shielded(self._begin_row), shielded(self._end_row)
        port.on_settle.append(self._close_part)

    def call(self, watched: Watched, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The script calls a jitted function."""
        if not self._runs:
            return watched.plain(*args, **kwargs)
        known = watched.known
        about = (
            None if known is None or known[0] is not self._functions else known[1].about.get(watched.key(args, kwargs))
        )
        if (about is None or (about.does and known[2] is None)) and not watched.is_of_library:
            about = self._known(watched, args, kwargs)
            raised, self._functions.raised = self._functions.raised, None
            if raised is not None:
                raise raised
            if about is None and jax.config.jax_disable_jit:
                return watched.plain(*args, **kwargs)  # its gradients are those of an eager loop
        if about is None or not about.does:
            return running(watched.plain, *args, **kwargs)
        if about.is_whole_step and self._begins_row(about, args, kwargs):
            try:
                result = running(watched.plain, *args, **kwargs)
            except BaseException:
                self.steps.fail()
                raise
            self._ends_row(about, result)
            return result
        twin: Twin = watched.known[2]
        if about.steps > 1:
            return self._several(about, watched, args, kwargs)
        step = self._begins(about, twin, args, kwargs)
        try:
            if step is None:
                result, values = running(watched.plain, *args, **kwargs), Values()
            else:
                result, values = twin(functools.partial(running, watched.plain), *args, **kwargs)
        except BaseException:
            self.steps.fail()
            raise
        self._ends(step, result, values, (args, kwargs))
        return result

    def _several(self, about: About, watched: Watched, args: Any, kwargs: Any) -> Any:
        """A call that makes several steps: the last one that is due gets the tensors of the last one."""
        twin: Twin = watched.known[2]
        wanted = self._begins_several(about, twin, args, kwargs)
        try:
            if wanted:
                result, values = twin(functools.partial(running, watched.plain), *args, **kwargs)
            else:
                result, values = running(watched.plain, *args, **kwargs), Values()
        except BaseException:
            self.steps.fail()
            raise
        self._ends_several(about, result, values)
        return result

    def _begin_several(self, about: About, twin: Twin, args: Any, kwargs: Any) -> bool:
        """The first of several steps begins; returns whether something of any is due."""
        self._close_part()
        if self.port.resumption.open:
            self.port.resumption.settle(updates_before((args, kwargs)), "optimizer")
        self._first_number = first = self.port.clock.next_train_step
        next_due, self._due_at, found = self.port.alternating.next_due, -1, first - 1
        while (found := next_due(about.model, found + 1)) < first + about.steps:
            self._due_at = found
        self._first = self.steps.begin(Mode.TRAIN, collects=self._due_at == first, model=about.model)
        return self._due_at >= 0 and twin.ready(*args, **kwargs)

    def _end_several(self, about: About, result: Any, values: Values) -> None:
        losses = self._values.collected_loss(values) if about.loss is None else about.loss(result)
        first, step = self._first_number, self._first
        for number in range(first, first + about.steps):
            if number > first:
                step = self.steps.begin(Mode.TRAIN, collects=bool(values) and number == self._due_at, model=about.model)
            loss = None if losses is None else DeferredNumbers(functools.partial(_number_at, losses, number - first))
            self._finish(about, step, loss, values, None)

    def gradient(
        self, of: tuple[Any, Callable[[Any], Any] | None], plain: Callable[..., Any], collecting: Callable[..., Any],
        args: Any, kwargs: Any,
    ) -> Any:  # fmt: skip
        """The script computes a gradient outside of all jitted functions.

        Args:
            of: The arguments that are differentiated, and what takes the loss out of the result, None if it is not
                there.
            plain: Computes the gradient.
            collecting: Computes it and collects values.
            args: The arguments.
            kwargs: The arguments by name.
        """
        if not self._runs:
            return plain(*args, **kwargs)
        step = self._begins_gradient(of, args, kwargs)
        values: Values = {}
        try:
            if step is None:
                result = running(plain, *args, **kwargs)
            else:
                with TRACING.frame() as values:
                    result = running(collecting, *args, **kwargs)
                if self._called.loss is None:
                    found = Outcome.of(result, values, TRACING.collector.known).about
                    self._called = replace(self._called, loss=found.loss)
        except BaseException:
            self.steps.fail()
            raise
        self._ends(step, result, values)
        return result

    def _begin_gradient(self, of: tuple[Any, Callable[[Any], Any] | None], args: Any, kwargs: Any) -> OpenStep | None:
        argnums, loss = of
        at = argnums if isinstance(argnums, int) else argnums[0]
        differentiated = args[at] if isinstance(argnums, int) else [args[each] for each in argnums]
        model = TRACING.models.number_of(named_leaves(differentiated))
        lineage = ModelLineage(model, lambda arguments: jax.tree_util.tree_leaves(arguments[0][at])[0])
        about = About(frozenset((GRADIENT,)), loss, model=model, base=model, lineages=(lineage,))
        return self._begin(about, None, args, kwargs)

    def updated(self, before: Any, after: Any) -> None:
        """The script has updated parameters outside of all jitted functions."""
        if self._runs:
            self._updates(before, after)

    def save(self, tree: Any, name: str) -> None:
        """The script saves values outside of all jitted functions."""
        if not traced(tree):
            for path, leaf in named_leaves(tree):
                self.port.guard.call(self.port.save_tensor, dotted((name, *path)), leaf, None)
        elif name not in self._lost:
            self._lost.add(name)
            _log.warning(
                "watchglass: %s is not recorded: the function that observes it was jitted before watchglass could see "
                "it; jit it by watchglass.jax.jit", name,
            )  # fmt: skip

    @property
    def _runs(self) -> bool:
        guard = self.port.guard
        return guard.active and threading.get_ident() == guard.thread

    def hides(self, fun: Any) -> None:
        """A gradient is traced in no function that is watched: no step is recorded where all gradients are such."""
        name = str(getattr(fun, "__qualname__", "a function"))
        if self._runs:
            # Others may be seen.
            self.port.guard.call(functools.partial(self._hidden.report, _OUTSIDE, name, warns=False))

    def _begin(self, about: About, twin: Twin | None, args: Any, kwargs: Any) -> OpenStep | None:
        """Returns the step whose values are collected in the call; None if none are."""
        about = self._called = self._resolved(about, args, kwargs)
        part, does = self._part, about.does
        if GRADIENT not in does and UPDATE in does:  # the update of a step whose gradient was another call
            step = None if part is None else part.step
        elif part is not None and self._continues(part, about):
            step = part.step
        else:
            self._close_part()
            if about.mode is Mode.TRAIN and self.port.resumption.open:
                self.port.resumption.settle(updates_before((args, kwargs)), "optimizer")
            step = self.steps.begin(about.mode, model=about.model)
            if GRADIENT in does and UPDATE not in does and self._waits_for_update:
                self._part = PartialStep(about, step)
        if step is None or (twin is not None and not twin.ready(*args, **kwargs)):
            return None
        return step

    def _begin_row(self, about: About, args: Any, kwargs: Any) -> bool:
        """Whether nothing is due at a whole step, and nothing else is to be found out about its call."""
        if self._part is not None or self.port.resumption.open:
            return False
        return TRACING.chains.goes_on(about.lineages[0], (args, kwargs)) and self.steps.begin_row(about.model)

    def _end_row(self, about: About, result: Any) -> None:
        TRACING.chains.updated(about.lineages[0], about.model, result)
        loss = ABSENT if about.loss is None else about.loss(result)
        optimizer, update = TRACING.optimizer_of(about.base), self._updates_of(about.model)
        self.steps.returned(None if loss is ABSENT else loss)
        self.steps.end_row(loss, None if optimizer is None else optimizer.rate(update), model=about.model)

    @property
    def _waits_for_update(self) -> bool:
        return self._apart or (self._apart is None and bool(TRACING.optimizers))

    def _continues(self, part: PartialStep, about: About) -> bool:
        """Whether another gradient belongs to the same update."""
        if GRADIENT not in about.does or UPDATE in about.does or about.model != part.about.model:
            return False
        if self._apart is None and len(part.losses) >= _MOST_PARTS:
            self._apart = False
        return self._waits_for_update

    def _resolved(self, about: About, args: Any, kwargs: Any) -> About:
        """With the model of this call, where there are equal ones."""
        if len(about.lineages) != 1:
            return about
        find = TRACING.chains.trained if about.mode is Mode.TRAIN or UPDATE in about.does else TRACING.chains.evaluated
        number = find(about.lineages[0], (args, kwargs))
        if number == about.model:
            return about
        return about.of_equal.get(number) or about.of_equal.setdefault(number, replace(about, model=number))

    def _end(self, step: OpenStep | None, result: Any, values: Values, given: Any = None) -> None:
        part, about = self._part, self._called
        add = TRACING.collector.add
        for update in about.returned:
            if update.is_open:
                update.called(given, result)
            for what, value in update.values(result) if values else ():
                add(what, copied(value), values)
        for name, value in given_batch(about.batch, given) if values else ():
            add(Collected(ValuePart.BATCH, name, model=about.model), copied(value), values)
        for lineage in about.lineages:
            if lineage.returned is not None:
                TRACING.chains.updated(lineage, about.model if len(about.lineages) == 1 else lineage.model, result)
        if GRADIENT not in about.does and UPDATE in about.does:
            if part is not None:
                self._apart = True
                part.values.append(values)
                part.update = about
                self._close_part()
            return
        loss = about.loss(result) if about.loss is not None else self._values.collected_loss(values)
        if part is not None:
            part.losses += [] if loss is None else [loss]
            part.values.append(values)
            return
        self._finish(about, step, loss, values, result)

    def _update(self, before: Any, after: Any) -> None:
        part = self._part
        if part is None:
            self._apart = True if self._apart is None else self._apart
            return
        self._apart = True
        leaf = next(iter(jax.tree_util.tree_leaves(after)), None)
        if leaf is not None and part.about.lineages:
            TRACING.chains.moved(part.about.base, part.about.model, leaf)
        if part.step is not None:
            with TRACING.frame() as values:
                TRACING.updated(before, after)
            part.values.append(values)
        self._close_part()

    def _close_part(self) -> None:
        """The step whose update was waited for is over."""
        part, self._part = self._part, None
        if part is not None:
            losses = part.losses
            loss = None if not losses else losses[0] if len(losses) == 1 else sum(losses) / len(losses)
            self._finish(part.about, part.step, loss, self._values.merged(part.values), None, part.update)

    def _finish(
        self,
        about: About,
        step: OpenStep | None,
        loss: Any,
        values: Values,
        result: Any,
        update_by: About | None = None,
    ) -> None:
        self.steps.returned(loss if isinstance(loss, jax.Array) else None)
        if loss is not None and not isinstance(loss, DeferredNumbers):
            loss = DeferredNumbers(functools.partial(float, loss))
        numbers = {} if loss is None else {"loss": loss}
        if about.mode is Mode.EVAL and result is not None:
            numbers |= {name: take(result) for name, take in about.numbers.items()}
        train = about.mode is Mode.TRAIN
        optimizer = TRACING.optimizer_of(about.base) if train else None
        update = self._updates_of(about.model) if train else 0
        rate = None if optimizer is None else optimizer.rate(update)
        updaters = {} if optimizer is None or step is None else {about.model: optimizer.updater(update)}
        if train and not update and values:
            # The averages that a first step gets are initial ones.
            values = {key: value for key, value in values.items() if TRACING.collector.known[key].part not in _AVERAGES}
        if step is not None and values:
            self._values.save(step, about, update_by or about, values, updaters)
        self.steps.end(numbers, rate=rate, model=about.model)

    def _updates_of(self, model: int) -> int:
        """How many updates a model had before this one; those before this process count for the first."""
        if not self._updates_so_far:
            self._updates_so_far[model] = self.port.clock.first_train_step
        self._updates_so_far[model] += 1
        return self._updates_so_far[model] - 1


def updates_before(arguments: Any) -> int | None:
    """How many updates an optimizer or a state of training among the arguments counts; None if none counts."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        counts = path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name in ("count", "step")
        if counts and np.shape(leaf) == () and jax.numpy.issubdtype(jax.numpy.result_type(leaf), jax.numpy.integer):
            return int(leaf) or None
    return None


def _number_at(array: Any, index: int) -> float:
    return float(np.asarray(array).reshape(-1)[index])
