"""What a script does while a function is traced, or between two eager updates; and the values that it makes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from watchglass.capture.compiled.collecting import Collected, Collector, ValuePart, Values
from watchglass.capture.compiled.keras_activations import activation_of
from watchglass.capture.compiled.keras_normalizations import averages_of
from watchglass.capture.compiled.reductions import reduced_values
from watchglass.capture.facts.clips import NORM_BEFORE_CLIP
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.planning.plan import Plan
from watchglass.capture.saving.module_tensors import input_tags
from watchglass.capture.saving.nested_arrays import leaves_in
from watchglass.capture.tensorflow.arrays import PRIMITIVES
from watchglass.capture.tensorflow.clips import ClippedGradients
from watchglass.capture.tensorflow.graph import TracedGraph
from watchglass.capture.tensorflow.losses import JudgedCall
from watchglass.capture.tensorflow.models import TrainedModel, TrainedModels, variable_of
from watchglass.capture.tensorflow.optimizers import inner_of
from watchglass.records import ModuleKind, Role, facts

#: Kinds of modules whose inputs rules read.
_INPUTS_READ = (ModuleKind.RECTIFIER, ModuleKind.SATURATING)

Pairs = list[tuple[Any, Any]]


@dataclass(eq=False)
class Doings:
    """What happened in one trace or one eager step, in order.

    Attributes:
        values: The collected values, once it is closed.
        derived: Gradients: the model, the target, variables with their gradients.
        updates: Calls of optimizers: the optimizer, variables with the gradients that it got.
        scaled: Losses before scaling, by identity of the scaled one.
        judged: Calls of loss functions with their results.
        clips: Calls that clip tensors, of gradients or not.
        calls: Calls of layers: the layer, its arguments, its result; the inner ones first.
        normalized: Moving averages of batch normalizations that were called: the layer, what it is and what it was
            called for, each with its value.
        roots: The layers among them that the script called.
        depth: How many layers run now.
        replicated: Whether replicas run in it, of which the first one is reported.
        assigned: Identities of variables that functions assign to that are called in it.
        call_nested: Calls a compiled function that is called in it, so that this gets what happens there; None where
            that function itself is called.
        nests: Whether it calls compiled functions of the script.
        unseen: Whether one of them did not show what it does, as it was traced before.
    """

    values: Values
    derived: list[tuple[TrainedModel, Any, Pairs]] = field(default_factory=list)
    updates: list[tuple[Any, Pairs]] = field(default_factory=list)
    scaled: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    judged: list[tuple[JudgedCall | None, Any]] = field(default_factory=list)
    clips: list[ClippedGradients] = field(default_factory=list)
    calls: list[tuple[Any, Any, Any]] = field(default_factory=list)
    normalized: list[tuple[Any, ValuePart, facts.NormalizationState, Any]] = field(default_factory=list)
    roots: list[Any] = field(default_factory=list)
    depth: int = 0
    replicated: bool = False
    assigned: set[int] = field(default_factory=set)
    call_nested: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
    nests: bool = False
    unseen: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened that is of interest."""
        return not (self.derived or self.updates or self.judged or self.calls)

    def losses_alone(self) -> Doings:
        """The losses among this."""
        derived = [(model, target, Pairs()) for model, target, _ in self.derived]
        return Doings(Values(), derived, scaled=self.scaled, judged=[(None, result) for _, result in self.judged])

    def changed(self, change: Callable[[Any], Any]) -> Doings:
        """The same with other tensors."""

        def of(value: Any) -> Any:
            if isinstance(value, tf.Tensor):
                return change(value)
            if isinstance(value, tf.IndexedSlices):
                return tf.IndexedSlices(change(value.values), change(value.indices), value.dense_shape)
            if isinstance(value, dict):
                return {key: of(each) for key, each in value.items()}
            return type(value)(map(of, value)) if type(value) in (list, tuple) else value

        def of_pairs(pairs: Pairs) -> Pairs:
            return [(variable, of(gradient)) for variable, gradient in pairs]

        scaled = [(of(each), of(loss)) for each, loss in self.scaled.values()]
        return replace(
            self,
            derived=[(model, of(target), of_pairs(pairs)) for model, target, pairs in self.derived],
            updates=[(optimizer, of_pairs(pairs)) for optimizer, pairs in self.updates],
            scaled={id(each): (each, loss) for each, loss in scaled},
            judged=[
                (call and call._replace(predictions=of(call.predictions), labels=of(call.labels)), of(result))
                for call, result in self.judged
            ],
            clips=[each.changed(of) for each in self.clips],
            calls=[(layer, of(arguments), of(result)) for layer, arguments, result in self.calls],
        )

    def add(self, other: Doings) -> None:
        """What happened in a call inside."""
        self.derived += other.derived
        self.updates += other.updates
        self.scaled |= other.scaled
        for judged, result in other.judged:
            number = len(self.judged) + 1
            self.judged.append((judged and judged._replace(call=replace(judged.call, number=number)), result))
        self.clips += other.clips
        self.calls += other.calls
        if not self.depth:
            self.roots += other.roots
        self.assigned |= other.assigned

    def models(self) -> list[TrainedModel]:
        """The models with gradients or updates, each once."""
        return list({model.number: model for model, _, _ in self.derived}.values())

    def losses(self, graph: Any) -> dict[int, list[tuple[Any, Any]]]:
        """By number of the model, the losses whose gradients were taken, and the same without scaling."""
        found: dict[int, list[tuple[Any, Any]]] = {}
        for model, target, _ in self.derived:
            for each in tf.nest.flatten(target)[:1]:
                if belongs(each, graph):
                    found.setdefault(model.number, []).append((each, self.scaled.get(id(each), (each, each))[1]))
        return found


def belongs(value: Any, graph: Any) -> bool:
    """Whether a tensor is one of a graph; of none, whether it has values."""
    tensor = value.values if isinstance(value, tf.IndexedSlices) else value
    if not isinstance(tensor, tf.Tensor):
        return False
    return tensor.graph is graph if tf.is_symbolic_tensor(tensor) else graph is None


class GraphTracing:
    """The traces and eager steps that are open, and what closes them. For the thread that trains and its replicas.

    Args:
        models: The models.
        plan: What is wanted of tensors.
    """

    def __init__(self, models: TrainedModels, plan: Plan) -> None:
        self.models, self.collector = models, Collector()
        self._plan: Plan | None = plan
        #: Whether inputs of all modules, and results of models under another name, too, are wanted.
        self.wanted = False, False
        self.open: list[Doings] = []
        #: Graphs of training steps that were traced since the last step that was saved.
        self.graphs: list[TracedGraph] = []
        self._traces = 0

    def look_at_plan(self) -> None:
        """Find out what is wanted; not while a function is traced, where a fault would count as one of the trace."""
        if self._plan is not None:
            self.wanted = self._plan.wants(Role.INPUT), self._plan.wants_tag("model_output")

    def release(self) -> None:
        """Nothing is wanted any more; twins that live on hold no port."""
        self._plan = None
        self.models = TrainedModels(self.models.numbers)
        self.graphs.clear()

    @property
    def tracing(self) -> bool:
        """Whether a function is traced now."""
        return self._traces > 0

    @contextmanager
    def eager(self) -> Iterator[Doings]:
        """What happens inside, in no graph."""
        with self.collector.frame() as values:
            doings = Doings(values)
            self.open.append(doings)
            try:
                yield doings
            finally:
                self.open.remove(doings)

    @contextmanager
    def trace(self) -> Iterator[Doings]:
        """What happens inside, while a function is traced."""
        self._traces += 1
        try:
            with self.eager() as doings:
                yield doings
        finally:
            self._traces -= 1

    def counts(self, thread: int) -> bool:
        """Whether a call counts: of the thread that trains; while it traces, of the first replica."""
        if threading.get_ident() != thread and not self.tracing:
            return False
        if not self.tracing or not tf.distribute.has_strategy():
            return True
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            self.open[0].replicated = True
        number = 0 if context is None else tf.get_static_value(context.replica_id_in_sync_group)
        return not number

    def derived(self, model: TrainedModel, target: Any, sources: Any, gradients: Any) -> None:
        """Gradients were taken."""
        flat = tf.nest.flatten(sources), _flat_gradients(gradients)
        pairs = [(variable_of(source), each) for source, each in zip(*flat, strict=False)]
        for (owner, place), gradient in self._placed(pairs):
            owner.derived[place.name] = gradient is not None
        self.open[-1].derived.append((model, target, [pair for pair in pairs if pair[0] is not None]))

    def layer_returns(self, layer: Any, arguments: Any, result: Any) -> None:
        """A layer has returned."""
        doings = self.open[-1]
        doings.depth -= 1
        if result is None:
            return
        if not doings.depth:
            doings.roots.append(layer)
            self.models.offer(layer)
        doings.calls.append((layer, arguments, result))

    def normalized(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A batch normalization of Keras has returned."""
        for part, variable, about in averages_of(args, kwargs):
            self.open[-1].normalized.append((args[0], part, about, tf.convert_to_tensor(variable)))

    def close(self, doings: Doings, graph: Any, *, losses_only: bool = False) -> Values:
        """Collect the values of a graph, or those that are there for no graph; of the frame that is open."""
        for model, pairs in doings.losses(graph).items():
            for _, loss in pairs:
                if belongs(loss, graph):
                    self._add(ValuePart.LOSS, "loss", loss, model=model)
        number, judged = 0, self.judged(doings) if doings.judged else 0
        for arguments, result in doings.judged:
            if belongs(result, graph):
                self._add(ValuePart.EVALUATED, "loss", result, model=judged)
            if arguments is not None and not losses_only and belongs(arguments.predictions, graph):
                number += 1
                suffix = f"_{number}" if number > 1 else ""
                more = {"call": arguments.call, "model": judged}
                self._add(ValuePart.PREDICTIONS, f"prediction{suffix}", arguments.predictions, **more)
                if belongs(arguments.labels, graph) or (graph is None and not tf.is_tensor(arguments.labels)):
                    self._add(ValuePart.LABELS, f"label{suffix}", arguments.labels, **more)
        if not losses_only and self._plan is not None:
            self._close_clips(doings, graph)
            self._note_membership(doings)
            self._close_gradients(doings, graph)
            self._close_modules(doings, graph)
        return doings.values

    def judged(self, doings: Doings) -> int:
        """The number of the model whose answers a loss judges: one that is trained, else called."""
        called = (found[0] for found in map(self.models.module, doings.roots) if found is not None)
        model = next(itertools.chain(doings.models(), called), None)
        return self.models.numbers.first if model is None else model.number

    def keep(self, doings: Doings, graph: Any, values: Values) -> None:
        """Keep a graph that takes gradients, with the values of its trace, until a step of it is saved."""
        known = {key: self.collector.known[key] for key in values}
        losses = doings.losses(graph)
        for model in doings.models():
            sources = {id(variable) for owner, _, pairs in doings.derived if owner is model for variable, _ in pairs}
            parameters = [(each, place.name) for each, place in model.parameters.values() if id(each) in sources]
            if model.number in losses:
                self.graphs.append(TracedGraph(graph, values, known, parameters, model.number))

    def reduced(self, values: Values) -> Values:
        """The values of a graph with those reduced that are there for their statistics alone."""
        wanted = (lambda role: True) if self._plan is None else self._plan.takes_elements
        return reduced_values(PRIMITIVES, values, self.collector.known, wanted)

    def _close_clips(self, doings: Doings, graph: Any) -> None:
        owners: dict[int, TrainedModel] = {}
        for model, _, pairs in doings.derived:
            owners |= {id(gradient): model for _, gradient in pairs if gradient is not None}
        for _, pairs in doings.updates:
            known = ((self.models.place_of(variable), each) for variable, each in pairs if each is not None)
            owners |= {id(gradient): found[0] for found, gradient in known if found is not None}
        for each in doings.clips:
            owner = next((owners[id(one)] for one in (*each.given, *each.returned) if id(one) in owners), None)
            if each.norm is None:
                if owner is not None:  # else it clips no gradients
                    owner.clips[each.clip] = None
            elif belongs(each.norm, graph) and (owner is not None or doings.derived):
                owner = owner or doings.derived[-1][0]
                self._add(ValuePart.CLIPPED, NORM_BEFORE_CLIP, each.norm, model=owner.number, clip=each.clip)

    def _note_membership(self, doings: Doings) -> None:
        for optimizer, pairs in doings.updates:
            for (model, place), gradient in self._placed(pairs):
                given = model.given.setdefault(type(inner_of(optimizer)).__name__, {})
                given[place.name] = gradient is not None

    def _placed(self, pairs: Pairs) -> Iterator[tuple[tuple[TrainedModel, ParameterPlace], Any]]:
        found = ((self.models.place_of(variable), gradient) for variable, gradient in pairs)
        return ((known, gradient) for known, gradient in found if known is not None)

    def _close_gradients(self, doings: Doings, graph: Any) -> None:
        found: dict[int, tuple[Any, Any]] = {}
        for pairs in (*(pairs for _, _, pairs in doings.derived), *(pairs for _, pairs in doings.updates)):
            for variable, gradient in pairs:
                if gradient is not None and belongs(gradient, graph):
                    found[id(variable)] = variable, gradient
        order = [key for model in doings.models() for key in model.parameters]
        for key in [each for each in order if each in found]:
            variable, gradient = found[key]
            known = self.models.place_of(variable)
            if known is not None:
                model, place = known
                self._add(
                    ValuePart.GRADIENT, place.name, gradient, place=place.place, parameter=place, model=model.number
                )

    def _close_modules(self, doings: Doings, graph: Any) -> None:
        seen: set[int] = set()
        normalize = {id(layer) for layer, *_ in doings.normalized}
        for layer, part, state, value in doings.normalized:
            known = self.models.module(layer)
            if known is not None and belongs(value, graph):
                model, place = known
                self._add(part, "", value, place=place, model=model.number, normalization=state)
        all_inputs, results_again = self.wanted
        roots = {id(root) for root in doings.roots}
        batch = {
            id(value)
            for layer, arguments, _ in doings.calls
            if id(layer) in roots
            for _, value in leaves_in(arguments, tf.is_tensor)
        }
        for layer, arguments, result in doings.calls:
            known = self.models.module(layer)
            if known is None:
                continue
            model, place = known
            is_root = id(layer) in roots
            for path, value in leaves_in(result, tf.is_tensor):
                again = id(value) in seen and not (is_root and results_again)
                if not belongs(value, graph) or again or not value.dtype.is_floating:
                    continue
                seen.add(id(value))
                tags = _output_tags(layer, place, is_root=is_root)
                self._add(ValuePart.OUTPUT, path, value, place=place, model=model.number, tags=tags)
            wanted = is_root or all_inputs or place.kind in _INPUTS_READ or id(layer) in normalize
            for path, value in leaves_in(arguments, tf.is_tensor):
                # Those that take the batch as it is tell whether it is normalised first.
                if (wanted or id(value) in batch) and belongs(value, graph):
                    axes, dtype = len(value.shape), value.dtype.name
                    tags = input_tags(place, path, axes, dtype, outermost=is_root)
                    self._add(ValuePart.INPUT, path, value, place=place, model=model.number, tags=tags)
                    if is_root:
                        self._add(ValuePart.BATCH, path, value, place=place, model=model.number)

    def _add(self, part: ValuePart, name: str, value: Any, **more: Any) -> None:
        self.collector.add(Collected(part, name, **more), value)


def _output_tags(layer: Any, place: Place, *, is_root: bool) -> tuple[str, ...]:
    if ModuleKind.RECTIFIER in (place.kind, activation_of(layer)):
        return ("relu_output",)
    return ("model_output",) if is_root else ()


def _flat_gradients(gradients: Any) -> list[Any]:
    """Gradients as they lie in what the tape returned, slices of rows whole."""
    return list(tf.nest.flatten(gradients))


def losses_in(values: Values, known: Mapping[str, Collected], part: ValuePart) -> dict[int, list[Any]]:
    """Losses among values, by number of the model."""
    found: dict[int, list[Any]] = {}
    for key, value in values.items():
        if known[key].part is part:
            found.setdefault(known[key].model, []).append(value)
    return found
