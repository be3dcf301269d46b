"""Facts ``batch``, ``data_loader`` and ``input_sketch``: the inputs of the model, and their source.

Which worker of a loader made a batch is known only inside the worker. From outside it follows from the order: a loader
hands out its workers' batches in turn, so the first batches of an epoch come from the first worker, the second, and
so on. Captured steps, whose numbers are multiples of powers of two, may all meet the same worker; hence the first
batches of some epochs are hashed as well, one for each worker.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.facts.input_sketches import Correlations, Sample, first_of_each_kind, hashed
from watchglass.capture.planning.sketch_pace import SketchPace, is_power_of_two
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.device.readback import on_host
from watchglass.capture.pytorch.events import ForwardCall, ModuleCall, Update
from watchglass.capture.pytorch.facts.copies import is_readable, sample, table_sample
from watchglass.capture.pytorch.facts.judged_rows import number_of_model
from watchglass.capture.pytorch.facts.object_names import ObjectNames
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_hooks import Unsaved, unsaved
from watchglass.capture.pytorch.modules.module_tree import is_compiled
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.record import DeferredFact, Forward
from watchglass.records import Mode, ModuleKind, facts

#: Tensors of a call that are sampled, and batches of an epoch that are hashed.
_MOST_TENSORS, _MOST_BATCHES = 4, 16
#: Tokens of an embedding whose gradients are noted.
_MOST_TOKENS = 4096


class _Takers(list[str]):
    """Kinds of the modules that take a sketched tensor, and norms of the gradients of an embedding among them."""

    gradients: Any = None


class _EpochStart:
    """The first batches of an epoch, while they are gathered."""

    def __init__(self, name: str, iteration: int, loader: Any) -> None:
        self.loader = name
        self.iteration = iteration
        self.workers = _workers(loader)
        self.batch_size = getattr(loader, "batch_size", None)
        self.in_order = getattr(loader, "in_order", True)
        self.root: weakref.ref[nn.Module] | None = None
        # No model was known when the script requested batches from the loader.
        self.waiting = False
        self.batches: list[list[Sample]] = []
        self.remove: list[Callable[[], None]] = []

    @property
    def complete(self) -> bool:
        return len(self.batches) >= min(self.workers, _MOST_BATCHES)

    def fact(self) -> facts.BatchInputs:
        """The fact; for the recorder's thread."""
        # A model that gets parts of batches, or one batch twice: the worker is unknown.
        whole = all(samples and samples[0].shape[:1] == (self.batch_size,) for samples in self.batches)
        workers = tuple(index % self.workers for index in range(len(self.batches))) if self.in_order and whole else None
        return replace(hashed(self.batches), loader=self.loader, iteration=self.iteration, workers=workers)


class Batches:
    """Samples the arguments of outermost modules, and observes iterations over loaders."""

    def __init__(self, port: Port, models: Models, kinds: frozenset[str], leave: ExitStack) -> None:
        self._port = port
        self._models = models
        self._kinds = kinds
        self._loaders = ObjectNames()
        self._iterations: dict[str, int] = {}
        self._epoch: _EpochStart | None = None
        self._pace = SketchPace()
        # By model the first input of its latest captured forward.
        self._latest: dict[int, weakref.ref[Tensor]] = {}
        self._correlations: dict[str, Correlations] = {}
        # Of the tensors that are sketched in this forward: their memory, and the kinds of the modules that take them.
        self._sketched: dict[tuple[Any, ...], _Takers] = {}
        # Embeddings that took a sketched tensor, until the update of their step.
        self._embedded: list[tuple[weakref.ref[nn.Module], _Takers]] = []
        #: An entry of :attr:`Events.module_listeners`.
        self.module_listeners = (lambda: "input_sketch" in kinds, self._called)
        self._guarded = port.guarded(self._first_batches, unless=compiling)
        if kinds & {"batch", "data_loader"}:
            leave.callback(self._end_epoch_start)
            leave.callback(calls.loads(port.guard, after=port.guarded(self._iterated)))
        if "batch" in kinds:
            # Forwards inside a backward are recomputations without a new batch.
            leave.callback(calls.BACKWARD.listen(port.guard))

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        mode, number = call.step.mode, call.step.mode_step
        sketching = "input_sketch" in self._kinds and self._pace.due(mode, call.forward.model, number)
        if not sketching and "batch" not in self._kinds:
            return
        samples = self._samples(call.root, call.arguments, call.kwargs)
        records = call.forward.records
        if "batch" in self._kinds and samples:
            counts, (same, part) = dict(self._iterations), self._held(call)
            records.add_fact(
                DeferredFact(
                    facts.BatchInputs,
                    lambda: replace(hashed([samples]), iterations=counts, same_tensor=same, part=part),
                ),
                "forward",
            )
        if sketching:
            self._sketched = {}
            for chosen in first_of_each_kind(samples):
                into, taken = _Takers(), chosen
                for path, tensor in self._inputs(call.root, call.arguments, call.kwargs):
                    if path == chosen.path:
                        taken = table_sample(path, tensor) or chosen
                        if (memory := _memory(tensor)) is not None:
                            self._sketched[memory] = into
                about = functools.partial(self._sketch, call.forward, taken, into, training=mode is Mode.TRAIN)
                records.add_fact(DeferredFact(facts.InputSketch, about), "forward")
        epoch = self._epoch
        if epoch is not None and epoch.waiting and mode is Mode.TRAIN:
            epoch.waiting = False
            self._attach(epoch, [call.root])
            self._add(epoch, call.root, samples)

    def _held(self, call: ForwardCall) -> tuple[bool | None, float | None]:
        """Whether a script made the first input for this forward, and of how much memory it is a part."""
        tensor = next((tensor for _, tensor in self._inputs(call.root, call.arguments, call.kwargs)), None)
        if tensor is None or type(tensor) is not Tensor:
            return None, None
        before = self._latest.get(call.forward.model)
        self._latest[call.forward.model] = weakref.ref(tensor)
        return None if before is None else before() is tensor, _part_of_memory(tensor)

    def _inputs(self, root: nn.Module, arguments: Any, kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self._models.carried.inputs(root, arguments, kwargs, _MOST_TENSORS)

    def _samples(self, root: nn.Module, arguments: Any, kwargs: Any) -> list[Sample]:
        found = (sample(path, tensor) for path, tensor in self._inputs(root, arguments, kwargs))
        return [taken for taken in found if taken is not None]

    def _called(self, call: ModuleCall) -> None:
        if self._sketched and call.place.kind is not ModuleKind.CONTAINER:
            for _, tensor in tensors_in(call.arguments, _MOST_TENSORS):
                into = self._sketched.get(_memory(tensor) or ())
                if into is not None and call.place.kind.value not in into:
                    into.append(call.place.kind.value)
                    padded = vars(call.module).get("padding_idx") is not None
                    if call.place.kind is ModuleKind.EMBEDDING and not padded:
                        self._embedded.append((weakref.ref(call.module), into))

    def forward_ended(self, call: ForwardCall) -> None:
        """The captured forward has ended."""
        self._sketched = {}

    def _sketch(self, forward: Forward, taken: Sample, into: _Takers, *, training: bool) -> facts.InputSketch | None:
        """The sketch; for the recorder's thread."""
        key = f"{forward.model}/{taken.path}"
        correlations = self._correlations.setdefault(key, Correlations()) if training else None
        sketch = taken.sketch(correlations, into.gradients)
        return sketch and replace(sketch, into=tuple(into), model=number_of_model(self._models, forward))

    def update_began(self, update: Update) -> None:
        """Gradients are final: note those of the tokens of an embedding that took a sketched tensor."""
        embedded, self._embedded = self._embedded, []
        for reference, taken in embedded:
            gradient = getattr(_weight(reference()), "grad", None)
            if is_readable(gradient) and gradient.dim() == 2:
                norms = torch.linalg.vector_norm(gradient[:_MOST_TOKENS].float(), dim=1)
                taken.gradients = on_host(norms)

    def _iterated(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        loader = args[0]
        name = self._loaders.name("loader", loader)
        count = self._iterations[name] = self._iterations.get(name, 0) + 1
        if count == 1 and "data_loader" in self._kinds:
            self._port.records.current().add_fact(_settings(name, loader), "DataLoader")
        if self._epoch is not None and self._epoch.loader == name:
            self._end_epoch_start()  # its batches are fewer than its workers
        # At the first, second, fourth, eighth epoch and so on: what workers have in common does not change.
        if "batch" in self._kinds and _workers(loader) > 1 and is_power_of_two(count):
            self._end_epoch_start()
            epoch = self._epoch = _EpochStart(name, count, loader)
            roots = self._models.roots()
            epoch.waiting = not roots
            self._attach(epoch, roots)

    def _attach(self, epoch: _EpochStart, roots: list[nn.Module]) -> None:
        if any(map(is_compiled, roots)):
            self._epoch = None  # a later hook has no effect there, or triggers a compilation
            return
        for root in roots:
            handle = root.register_forward_pre_hook(Unsaved(self._guarded), with_kwargs=True)
            epoch.remove.append(unsaved(handle))

    def _first_batches(self, root: nn.Module, arguments: Any, kwargs: Any) -> None:
        epoch = self._epoch
        if epoch is None or calls.BACKWARD.nest.inside:
            return
        if torch.is_grad_enabled():
            self._add(epoch, root, self._samples(root, arguments, kwargs))
        else:
            self._end_epoch_start()  # a loader of validation data, or one in between

    def _add(self, epoch: _EpochStart, root: nn.Module, samples: list[Sample]) -> None:
        if epoch.root is None:
            epoch.root = weakref.ref(root)
        if epoch is not self._epoch or epoch.root() is not root:
            return
        epoch.batches.append(samples)
        if epoch.complete:
            self._end_epoch_start()

    def _end_epoch_start(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            return
        while epoch.remove:
            epoch.remove.pop()()
        if len(epoch.batches) > 1:
            self._port.records.current().add_fact(DeferredFact(facts.BatchInputs, epoch.fact), "first batches")


def _memory(tensor: Any) -> tuple[Any, ...] | None:
    """The key that a tensor shares with views of all its elements; None where it owns no memory."""
    try:
        return tensor.data_ptr(), tensor.numel(), tensor.dtype
    except RuntimeError:
        return None


def _part_of_memory(tensor: Tensor) -> float | None:
    """The share that the rows of a tensor have of those that it is a view of; None where it owns no memory."""
    try:
        memory, rows = tensor.untyped_storage().nbytes(), tensor.shape[:1]
        # With all columns, of which a view may leave some out.
        taken = rows[0] * tensor.stride(0) * tensor.element_size() if rows else 0
    except RuntimeError:
        return None
    return min(1.0, taken / memory) if memory and taken else None


def _weight(module: nn.Module | None) -> Tensor | None:
    """The parameter "weight". A parametrised one is none: to read it computes it, which may change its state."""
    own = {} if module is None else dict(module.named_parameters(recurse=False))
    return own.get("weight")


def _workers(loader: Any) -> int:
    number = getattr(loader, "num_workers", 0)
    return number if isinstance(number, int) else 0


def _sampler(loader: Any) -> tuple[Any, int | None]:
    """What orders the samples of a loader, and its batch size; None where a sampler of the user makes the batches.

    A loader that gets a sampler of batches has one of samples too, a sequential one, and does not ask it.
    """
    batches = getattr(loader, "batch_sampler", None)
    if type(batches) is torch.utils.data.BatchSampler:
        return batches.sampler, batches.batch_size
    return getattr(loader, "sampler", None) if batches is None else batches, getattr(loader, "batch_size", None)


def _length(loader: Any) -> int | None:
    """Batches of an epoch; None where only code of the user would know."""
    data = torch.utils.data
    samplers = (
        data.SequentialSampler, data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler,
        data.DistributedSampler,
    )  # fmt: skip
    if type(_sampler(loader)[0]) not in samplers or type(loader.batch_sampler) is not data.BatchSampler:
        return None
    try:
        return len(loader)
    except Exception:
        return None  # a data set without a length


def _settings(name: str, loader: Any) -> facts.LoaderSettings:
    """The settings of a loader; of the data set's code at most ``__len__`` is called, as its sampler does then."""
    data_set, (sampler, batch_size) = getattr(loader, "dataset", None), _sampler(loader)
    initialize = getattr(loader, "worker_init_fn", None)
    return facts.LoaderSettings(
        loader=name,
        data_set=type(data_set).__name__,
        iterable=isinstance(data_set, torch.utils.data.IterableDataset),
        sampler=type(sampler).__name__,
        batch_size=batch_size,
        batches=_length(loader),
        drop_last=bool(getattr(loader, "drop_last", False)),
        num_workers=_workers(loader),
        in_order=bool(getattr(loader, "in_order", True)),
        persistent_workers=bool(getattr(loader, "persistent_workers", False)),
        worker_init_fn=None if initialize is None else getattr(initialize, "__qualname__", type(initialize).__name__),
        generator=getattr(loader, "generator", None) is not None,
    )
