"""The steps of a training run in JAX: which calls are steps, what they do, and what is saved of them."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled.collecting import Collected, ValuePart, Values
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.membership import OptimizedParameters
from watchglass.capture.compiled.reductions import reduced_values
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.compiled.twin import Arguments, Repetition, Twin
from watchglass.capture.frameworks import FRAMEWORKS, member
from watchglass.capture.hidden_steps import HiddenFunctions
from watchglass.capture.jax.arrays import JaxArrays
from watchglass.capture.jax.batches import Argument, arguments_in, batch_in, given_batch
from watchglass.capture.jax.graph import ShownByProgram, read, shown_by
from watchglass.capture.jax.jitted import Watched
from watchglass.capture.jax.lineages import ModelLineage
from watchglass.capture.jax.profiler import JaxProfiler
from watchglass.capture.jax.results import differentiates, follows_from
from watchglass.capture.jax.returned_parameters import ReturnedParameters, returned_parameters
from watchglass.capture.jax.tracing import GRADIENT, LOSS, MODULE, OPTIMIZER, TRACING, UPDATE, traced
from watchglass.capture.jax.trees import dotted, getter, named_leaves, words_of
from watchglass.capture.jax.written_losses import ReadingTwin, written_in
from watchglass.capture.port import Port
from watchglass.config import chosen_facts
from watchglass.record import OpenStep
from watchglass.records import Mode, ModuleKind
from watchglass.store import ABSENT

_log = logging.getLogger("watchglass")
_OUTSIDE, _INSIDE = FRAMEWORKS["jax"].hidden

#: Kinds of modules whose inputs show what a function that is a ReLU has made.
_WEIGHTED = (ModuleKind.LINEAR, ModuleKind.CONVOLUTION)

#: Calls with a gradient that one update may follow, where no update was seen yet.
_MOST_PARTS = 16

Getters = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class About:
    """What is known of the calls of a function with some static arguments.

    Attributes:
        does: What it does, of the words of ``tracing``; empty if it is no step.
        loss: Takes the loss out of its result; None if it is not there.
        numbers: Take other numbers out of its result, by name.
        model: The model that it trains or evaluates.
        base: The model as the function was traced, which is equal to that.
        batch: The arguments that are the batch, by name.
        returned: Parameters among its results, which the script updates itself.
        steps: The number of its steps in a call, if it loops over them and returns the loss of each.
        lineages: Where it takes and returns the parameters of its models.
        given: The parameters that optimizers get, by name with the type of these.
        kept: Names of those that it updates by zero: they are frozen.
        unused: Names of those that its loss does not depend on.
    """

    does: frozenset[str] = frozenset()
    loss: Callable[[Any], Any] | None = None
    numbers: Getters = field(default_factory=dict)
    model: int = 0
    steps: int = 1
    lineages: tuple[ModelLineage, ...] = ()
    base: int = 0
    batch: Mapping[str, Argument] = field(default_factory=dict)
    returned: Sequence[ReturnedParameters] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()

    @functools.cached_property
    def of_equal(self) -> dict[int, About]:
        """The same of models that are equal to this one, by their numbers."""
        return {self.model: self}

    @functools.cached_property
    def is_whole_step(self) -> bool:
        """Whether each call is a whole TRAIN step of one model, which a library updates."""
        return self.steps == 1 and {GRADIENT, UPDATE} <= self.does and len(self.lineages) == 1 and not self.returned

    @property
    def mode(self) -> Mode:
        """The mode of its steps."""
        return Mode.TRAIN if GRADIENT in self.does else Mode.EVAL


NO_STEP = About()


class Function:
    """What is known of one function of the script, however often it is jitted.

    Args:
        fun: The function; its caller keeps it alive.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.about: dict[Any, About] = {}
        #: What the latest trace of its twin has shown, if it was not known to JAX already.
        self.latest: Outcome | None = None
        self.has_effects = False  #: Whether it does more than to return a result.
        self.shown = ShownByProgram()  #: What the program of that trace shows.
        #: Whether the script writes its loss out, so that its twin is read as a program.
        self.writes_loss = False
        #: Numbers of the arguments that are parameters of a known model, of the latest trace.
        self.parameters: tuple[int, ...] = ()
        self._arguments: list[Argument] = []
        #: Whether its twin, when it is traced, reduces what is there for its statistics alone.
        self.on_device = False
        self.trains = False  #: Whether it computes a gradient.
        try:
            held: Callable[[], Any] = weakref.ref(fun)
        except TypeError:
            held = lambda: fun  # noqa: E731  # it has no weak references
        self._held = held
        functools.update_wrapper(self, fun, updated=())
        del vars(self)["__wrapped__"]  # it would hold the function
        with suppress(TypeError, ValueError):
            vars(self)["__signature__"] = inspect.signature(fun)

    def complete(self, traced: Any) -> Outcome | None:
        """The trace is over, and gave this program; returns :attr:`latest`."""
        jaxpr, known = traced.jaxpr.jaxpr, TRACING.collector.known
        self.has_effects = bool(jaxpr.effects)
        shown = self.latest
        if shown is not None:
            shown = shown.completed(jaxpr)
            if shown.about.does and shown.about.steps == 1:
                with suppress(Exception):  # programs belong to JAX: without the batch, its facts alone are missing
                    batch = batch_in(jaxpr, traced.out_info, self._arguments, self.parameters, known)
                    shown = replace(shown, about=replace(shown.about, batch=batch))
            kept = frozenset(known[key].name for key in self.shown.kept if known[key].part is ValuePart.AFTER)
            unused = frozenset(known[key].name for key in self.shown.zero if known[key].part is ValuePart.GRADIENT)
            shown = replace(shown, about=replace(shown.about, kept=kept, unused=unused))
            self.latest = shown
        return shown

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Values]:
        """The result of the function, and the values: what the twin compiles."""
        with TRACING.evaluating((args, kwargs), trains=self.trains), TRACING.frame() as values:
            leaves = [leaf for leaf in jax.tree_util.tree_leaves((args, kwargs)) if isinstance(leaf, jax.core.Tracer)]
            self.parameters = tuple(at for at, leaf in enumerate(leaves) if TRACING.path_of(leaf) is not None)
            self._arguments = arguments_in((args, kwargs))
            out = self._held()(*args, **kwargs)
            trained = {
                id(value) for key, value in values.items() if TRACING.collector.known[key].part is ValuePart.BEFORE
            }
            self.parameters += tuple(at for at, leaf in enumerate(leaves) if id(leaf) in trained)
            lineages = TRACING.lineages((args, kwargs), out, values)
        given = TRACING.given
        returned = self._reduced(values) if self.on_device else values
        known = TRACING.collector.known
        shown = Outcome.of(out, values, known, returned, lineages)
        taken = {each.model: each.taken for each in lineages}
        updates = returned_parameters(values, known, out, taken)
        self.latest = replace(shown, about=replace(shown.about, returned=updates, given=given))
        return out, returned

    def _reduced(self, values: Values) -> Values:
        known, plan = TRACING.collector.known, TRACING.watching.port.plan
        parts = {known[key].part for key in values}
        # A gradient without its update may be averaged with others; a loss that is written out is found by parameters.
        kept = {ValuePart.GRADIENT, ValuePart.BEFORE} if ValuePart.AFTER not in parts else set[ValuePart]()
        if ValuePart.PREDICTIONS not in parts:
            kept.add(ValuePart.BEFORE)
        return reduced_values(JaxArrays.primitives, values, known, plan.takes_elements, kept)

    def again(self) -> Callable[..., tuple[Any, Values]]:
        """What the twin compiles, as another function: JAX traces one only once."""
        if self.writes_loss:
            return ReadingTwin(self, lambda: self.parameters, self._judged)

        @functools.wraps(self, updated=())
        def call(*args: Any, **kwargs: Any) -> tuple[Any, Values]:
            return self(*args, **kwargs)

        return call

    def tags(self, traced: Any) -> bool:
        """Whether this trace is the first one that shows that a layer takes what a ReLU has made."""
        collector, self.shown = TRACING.collector, ShownByProgram()
        if not (self.latest and self.latest.about.does & {GRADIENT, UPDATE}):
            return False
        with suppress(Exception):  # programs belong to JAX: without it, dead units and frozen parameters do not show
            self.shown = shown_by(traced.jaxpr, traced.out_info, self.parameters)
        takers = [(key, collector.known[key]) for key in self.shown.rectified]
        takers = [(key, what) for key, what in takers if what.part is ValuePart.INPUT and what.place.kind in _WEIGHTED]
        new = [key for key, _ in takers if collector.tag(key, "relu_output")]
        return bool(new)

    def is_to_be_read(self, traced: Any) -> bool:
        """Whether this trace is the first one that shows a written loss."""
        if self.latest is None or self.writes_loss:
            return False
        self.writes_loss = written_in(traced.jaxpr.jaxpr, traced.out_info, self.parameters) is not None
        return self.writes_loss

    def _judged(self, at: int) -> int:
        shown = self.latest
        if shown is None:
            return TRACING.models.current
        if GRADIENT not in shown.about.does:
            about = replace(shown.about, does=shown.about.does | {LOSS}, loss=getter(shown.out, at))
            self.latest = replace(shown, about=about)
        return shown.about.model


class FunctionRepetition(Repetition):
    """A function of JAX changes nothing in place; what it may reuse the memory of is copied for its twin.

    Args:
        function: What is known of it.
        donates: Whether it may reuse memory of its arguments.
    """

    def __init__(self, function: Function, *, donates: bool) -> None:
        self._function, self._donates = function, donates

    def is_possible(self) -> bool:
        """Not with effects, such as a print."""
        return not self._function.has_effects

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Arguments]:
        """Copies for the twin, if these may be used up."""
        for_twin = jax.tree_util.tree_map(_copied, (args, kwargs)) if self._donates else (args, kwargs)
        return for_twin, (args, kwargs)

    def are_equal(self, one: Any, other: Any) -> bool:
        """All numbers in both."""
        return equal(one, other)


@dataclass(eq=False)
class PartialStep:
    """What is known so far of a step whose update has not come.

    Attributes:
        about: What the calls do.
        step: The step, if something of it is due.
        losses: The loss of each call.
        values: The values of each call.
        update: What the call does that updates, of a function of its own.
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
        self._delivery = StepDelivery(port, "jax", self.steps)
        self._membership = OptimizedParameters("update")
        self._functions: weakref.WeakKeyDictionary[Any, Function] = weakref.WeakKeyDictionary()
        self._arrays = member(FRAMEWORKS["jax"].arrays)
        self._part: PartialStep | None = None
        self._called = NO_STEP  # what the call does that runs now
        self._updates_so_far: Counter[int] = Counter()  # by model
        # Of several steps in a call: the first and its number, and the number of the last one that is due.
        self._first: OpenStep | None = None
        self._first_number, self._due_at = 0, -1
        # Whether updates are separate calls; None until that is known.
        self._apart: bool | None = None
        #: Programs of twins that were traced since the last step, what they return, and numbers of models.
        self._programs: list[tuple[Any, Any, int]] = []
        self._described: set[int] = set()
        # Names of what is not recorded, each of which is reported once.
        self._lost: set[str] = set()
        self._hidden = HiddenFunctions(port)
        # What the script's function has raised as it was traced ahead of its call, for that call to raise.
        self._raised: Exception | None = None
        guarded = port.guarded
        self._known, self._begins, self._ends = guarded(self._about), guarded(self._begin), guarded(self._end)
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
        about = None if known is None or known[0] is not self else known[1].about.get(watched.key(args, kwargs))
        if (about is None or (about.does and known[2] is None)) and not watched.is_of_library:
            about = self._known(watched, args, kwargs)
            if self._raised is not None:
                raised, self._raised = self._raised, None
                raise raised
            if about is None and jax.config.jax_disable_jit:
                return watched.plain(*args, **kwargs)  # its gradients are those of an eager loop
        if about is None or not about.does:
            return self._run(watched.plain, *args, **kwargs)
        if about.is_whole_step and self._begins_row(about, args, kwargs):
            try:
                result = self._run(watched.plain, *args, **kwargs)
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
                result, values = self._run(watched.plain, *args, **kwargs), Values()
            else:
                result, values = twin(functools.partial(self._run, watched.plain), *args, **kwargs)
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
                result, values = twin(functools.partial(self._run, watched.plain), *args, **kwargs)
            else:
                result, values = self._run(watched.plain, *args, **kwargs), Values()
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
        losses = self._collected_loss(values) if about.loss is None else about.loss(result)
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
                result = self._run(plain, *args, **kwargs)
            else:
                with TRACING.frame() as values:
                    result = self._run(collecting, *args, **kwargs)
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

    def _run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        TRACING.busy = True
        try:
            return function(*args, **kwargs)
        finally:
            TRACING.busy = False

    def _about(self, watched: Watched, args: Any, kwargs: Any) -> About | None:
        """What a function does; None if it is unknown."""
        known = watched.known
        if known is None or known[0] is not self:
            known = watched.known = (self, self._function(watched.fun), None)
        key = watched.key(args, kwargs)
        about: About | None = known[1].about.get(key)
        if about is None:
            about = self._look(watched, args, kwargs)
            if about is None:
                return None
            known[1].about[key] = about
        if about.does and known[2] is None:
            watched.known = (self, known[1], self._twin(watched, known[1]))
        return about

    def _function(self, fun: Any) -> Function:
        try:
            return self._functions.setdefault(fun, Function(fun))
        except TypeError:  # no weak references, or no hash
            return Function(fun)

    def _twin(self, watched: Watched, function: Function) -> Twin:
        jitted = watched.jit_of(function.again() if function.writes_loss else function)

        def trace(*args: Any, **kwargs: Any) -> None:
            nonlocal jitted
            function.latest = None
            arrays = list(filter(self._arrays.is_array, jax.tree_util.tree_leaves((args, kwargs))))
            whole = all(each.is_fully_addressable for each in arrays)
            function.on_device = whole and not all(map(self._arrays.on_host, arrays))
            with TRACING.inside():
                found = jitted.trace(*args, **kwargs)
                # Units of what lies on a device are counted in the twin.
                for more in (function.is_to_be_read, lambda shown: function.tags(shown) and function.on_device):
                    if more(found):
                        jitted = watched.jit_of(function.again())
                        found = jitted.trace(*args, **kwargs)
            shown = function.complete(found)
            if shown is not None:
                self._programs.append((found.jaxpr, found.out_info, shown.about.model))

        run = lambda *args, **kwargs: self._run(jitted, *args, **kwargs)  # noqa: E731  # a trace may change it
        repetition = FunctionRepetition(function, donates=watched.donates)
        return Twin(self.port, watched.name, trace, run, repetition)

    def _look(self, watched: Watched, args: Any, kwargs: Any) -> About | None:
        """Trace a function ahead of its first call, which makes use of that trace; None if it is a part of another."""
        if traced(args, kwargs) or jax.config.jax_disable_jit:
            return None
        try:
            with TRACING.observing() as seen:
                found = watched.plain.trace(*args, **kwargs)
        except Exception as error:
            if _is_of_script(error):
                self._raised = error
            return None  # else the call raises the same
        trained, _ = TRACING.models.found_in((args, kwargs))
        if not (seen or trained or watched.was_jitted or differentiates(found.jaxpr.jaxpr)):
            return NO_STEP  # a helper function: it is traced once, as without us
        function: Function = watched.known[1]
        function.trains |= GRADIENT in seen
        twin = self._twin(watched, function)
        watched.known = (self, function, twin)
        if twin.ready(*args, **kwargs) and function.latest is not None:
            about = function.latest.about
            if GRADIENT not in seen or GRADIENT in about.does:
                return replace(about, does=about.does | _whole(seen))
            self._hidden.report(_INSIDE, watched.name)
            return NO_STEP
        about = Outcome.of(found.out_info, {}, {}).completed(None).about
        does = frozenset(seen) | _whole(seen)
        return replace(about, does=does, model=TRACING.models.current if does else 0)

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
                add(what, _copied(value), values)
        for name, value in given_batch(about.batch, given) if values else ():
            add(Collected(ValuePart.BATCH, name, model=about.model), _copied(value), values)
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
        loss = about.loss(result) if about.loss is not None else self._collected_loss(values)
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
            self._finish(part.about, part.step, loss, self._merged(part.values), None, part.update)

    def _merged(self, parts: list[Values]) -> Values:
        """The values of all parts: means of gradients and losses, the latest of others."""
        known, merged = TRACING.collector.known, Values()
        averaged: dict[str, list[Any]] = {}
        for values in parts:
            for key, value in values.items():
                if known[key].part in (ValuePart.GRADIENT, ValuePart.LOSS):
                    averaged.setdefault(key, []).append(value)
                elif known[key].part is not ValuePart.BEFORE or key not in merged:
                    merged[key] = value
        for key, several in averaged.items():
            merged[key] = several[0] if len(several) == 1 else sum(several) / len(several)
        return merged

    def _collected_loss(self, values: Values) -> Any:
        known = TRACING.collector.known
        parts = (ValuePart.LOSS, ValuePart.METRIC)
        return next((value for part in parts for key, value in values.items() if known[key].part is part), None)

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
            self._describe_programs()
            if train and about.model not in self._described:
                self._describe(about)
            known, update_by = self._known_of(about, values), update_by or about
            if train and step.due and "membership" in chosen_facts(self.port.config.facts):
                self._note_membership(values, known, update_by, about.unused, step)
            with self._arrays.owned():
                self._delivery.save(step, _without(values, update_by.kept, about.unused), known, updaters)
        self.steps.end(numbers, rate=rate, model=about.model)

    def _note_membership(
        self, values: Values, known: Mapping[str, Collected], update: About, unused: Collection[str], step: OpenStep
    ) -> None:
        """Say which parameters optimizers get; of none where a parameter is updated that is not given to any."""
        first, given = TRACING.collector.known, dict[int, dict[str, dict[str, bool]]]()
        after = {first[key].name for key in values if first[key].part is ValuePart.AFTER}
        trained: dict[int, dict[str, bool]] = {}
        for key in values:
            what, base = known[key], first[key].name
            if what.part is ValuePart.GRADIENT and base not in update.kept:
                has = trained.setdefault(what.model, {})[what.name] = base not in unused
                if base in after:
                    kinds = given.setdefault(what.model, {})
                    kinds.setdefault(update.given.get(base, ""), {})[what.name] = has
        for model, kinds in given.items():
            if "" not in kinds:
                derived = [name for name, has in trained[model].items() if has]
                self._membership.save(step, model, kinds, trained[model], derived)

    def _updates_of(self, model: int) -> int:
        """How many updates a model had before this one; those before this process count for the first."""
        if not self._updates_so_far:
            self._updates_so_far[model] = self.port.clock.first_train_step
        self._updates_so_far[model] += 1
        return self._updates_so_far[model] - 1

    @staticmethod
    def _known_of(about: About, values: Values) -> Mapping[str, Collected]:
        """What the values of a call are, in the order in which they are made."""
        known = TRACING.collector.known
        if about.model == about.base:
            return known
        return {
            key: TRACING.models.renamed(key, what, about.model) if what.model == about.base else what
            for key, what in known.items()
            if key in values
        }

    def _describe_programs(self) -> None:
        programs, self._programs = self._programs, []
        for jaxpr, returned, model in programs:
            known = TRACING.collector.known
            self._delivery.traced(functools.partial(read, jaxpr, returned, known, model), model)

    def _describe(self, about: About) -> None:
        model = about.model
        self._described.add(model)
        records = self.port.records.current()
        records.add_fact(TRACING.models.description(model), "jax")
        optimizer = TRACING.optimizer_of(about.base)
        if optimizer is not None:
            records.add_fact(optimizer.fact(TRACING.models.about(model)), "optax")


def _whole(seen: set[str]) -> frozenset[str]:
    """An update that does not show among the values, because it is made in a condition or by hand."""
    made = GRADIENT in seen and seen & {UPDATE, OPTIMIZER}
    return frozenset((UPDATE,)) if made else frozenset()


def updates_before(arguments: Any) -> int | None:
    """How many updates an optimizer or a state of training among the arguments counts; None if none counts."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        counts = path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name in ("count", "step")
        if counts and np.shape(leaf) == () and jax.numpy.issubdtype(jax.numpy.result_type(leaf), jax.numpy.integer):
            return int(leaf) or None
    return None


def equal(one: Any, other: Any) -> bool:
    """Whether two trees have the same numbers in the same places; waits for them."""
    pairs = list(zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True))
    arrays = [pair for pair in pairs if all(isinstance(each, jax.Array) for each in pair)]
    with TRACING.inside():
        return all(
            first.sharding == second.sharding and bool(jax.numpy.array_equal(first, second, equal_nan=True))
            for first, second in arrays
            if jax.numpy.issubdtype(first.dtype, jax.numpy.number)
        )


def _without(values: Values, kept: Collection[str], unused: Collection[str]) -> Values:
    """Values without those of weights that are frozen, and without gradients that do not exist."""
    if not (kept or unused):
        return values
    left_out = {ValuePart.BEFORE: kept, ValuePart.AFTER: kept, ValuePart.GRADIENT: unused}
    whats = ((key, TRACING.collector.known[key]) for key in values)
    return {key: values[key] for key, what in whats if what.name not in left_out.get(what.part, ())}


def _number_at(array: Any, index: int) -> float:
    return float(np.asarray(array).reshape(-1)[index])


#: Packages whose frames are no code of the script.
_BETWEEN = frozenset(("jax", "jaxlib", "optax", "flax", "equinox", "contextlib", "functools"))


def _is_of_script(error: Exception) -> bool:
    """Whether code of the script has raised an exception, and no function that watchglass has put around another."""
    found = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in _BETWEEN:
            found = package != "watchglass"
    return found


def _copied(leaf: Any) -> Any:
    """A copy of an array that the script may donate."""
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


_AVERAGES = frozenset((ValuePart.MEAN, ValuePart.VARIANCE))
_LOSSES = frozenset(("loss", "loss_value", "train_loss", "val_loss", "eval_loss"))
_WORDS = (
    (ValuePart.LOSS, GRADIENT), (ValuePart.AFTER, UPDATE), (ValuePart.METRIC, LOSS), (ValuePart.OUTPUT, MODULE),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What the trace of a twin has shown.

    Attributes:
        out: The result of the function, traced.
        about: What is known.
        scalars: Names of the numbers among the leaves of the result, by index.
        mean: Index of the mean of the losses of rows among all results of the twin; None without such losses.
    """

    out: Any
    about: About
    scalars: Mapping[int, str]
    mean: int | None

    @classmethod
    def of(
        cls, out: Any, values: Values, known: Mapping[str, Collected], returned: Mapping[str, Any] | None = None,
        lineages: tuple[ModelLineage, ...] = (),
    ) -> Outcome:  # fmt: skip
        """From a result and the values, those that the twin returns where they are others, and where parameters are."""
        leaves = jax.tree_util.tree_flatten_with_path(out)[0]
        parts = {key: known[key].part for key in values}
        does = frozenset(word for part, word in _WORDS if part in parts.values())
        models = [known[key].model for key, part in parts.items() if part in (ValuePart.GRADIENT, ValuePart.AFTER)]
        losses = [values[key] for key, part in parts.items() if part in (ValuePart.LOSS, ValuePart.METRIC)]
        scalars = {
            index: dotted(words_of(path))
            for index, (path, leaf) in enumerate(leaves)
            if getattr(leaf, "size", 0) == 1 and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
        }
        at = next((index for index, (_, leaf) in enumerate(leaves) if any(leaf is loss for loss in losses)), None)
        metric = next((key for key in sorted(values) if parts[key] is ValuePart.METRIC), None)
        before = {key: value for key, value in (returned or values).items() if metric is not None and key < metric}
        mean = len(leaves) + len(jax.tree_util.tree_leaves(before)) if metric and GRADIENT not in does else None
        objectives = [values[key] for key, part in parts.items() if part is ValuePart.LOSS]
        steps = [loss.shape[0] for loss in objectives if UPDATE in does and loss.ndim == 1]
        loss = None if at is None else getter(out, at)
        if lineages:
            models = models or [lineages[0].model]
        elif does:
            models = models or [known[key].model for key in parts]
        model = min(models, default=0)
        about = About(does, loss, model=model, steps=max(steps, default=1), lineages=lineages, base=model)
        return cls(out, about, scalars, mean)

    def completed(self, jaxpr: Any) -> Outcome:
        """With a loss that is computed from losses of rows, or named so, and the other numbers of the result."""
        loss, does, at = self.about.loss, self.about.does, None
        if loss is None and self.mean is not None:
            at = follows_from(jaxpr, self.mean, self.scalars)
        if loss is None and at is None:
            named = [index for index, name in self.scalars.items() if name.split(".")[-1] in _LOSSES]
            at = (
                named[0]
                if len(named) == 1
                else next(iter(self.scalars))
                if len(self.scalars) == 1 and not does
                else None
            )
        loss = getter(self.out, at) if at is not None else loss
        numbers = {
            name: getter(self.out, index)
            for index, name in self.scalars.items()
            if index != at and not name.split(".")[-1].isdigit() and name
        }
        return replace(self, out=None, about=replace(self.about, loss=loss, numbers=numbers))
