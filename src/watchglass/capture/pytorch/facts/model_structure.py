"""Facts ``training_flags`` and ``membership``: the modes of modules, and the parameters that optimizers hold."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.events import ForwardCall, Update
from watchglass.capture.pytorch.facts.drawn_weights import DrawnWeights
from watchglass.capture.pytorch.facts.object_names import ObjectNames
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import parameters_of, unwrap
from watchglass.record import CapturedRecords, DeferredFact
from watchglass.records import Mode, facts

_MOST_NAMED = 32
#: Captured forwards after which the modules of a model are listed again.
_LIST_AGAIN = 64
#: Changes of the mode of a model between captured steps that are recorded. A script that evaluates with gradients at
#: every step changes it twice for each.
_MOST_CHANGES = 64
#: Steps of an optimizer after which its parameters are taken for those of no model.
_STRANGE_STEPS = 8
_MOST_STRANGE = 4096
_MOST_KEPT = 1024


#: Name of a weight, and whether it is as it was drawn, or written once; see :meth:`DrawnWeights.drawn`.
_Compared = tuple[str, Callable[[], bool] | None, Callable[[], bool] | None]


class _Modules:
    """The modules of one model, held weakly, and their last recorded flags."""

    def __init__(self) -> None:
        self.uses = self.changes = 0
        self.rows: list[tuple[weakref.ref[nn.Module], str]] = []
        self.reported: dict[Mode, list[bool]] = {}

    def flags(self, root: nn.Module) -> list[bool]:
        """``training`` of each, in order; the list of modules is made again now and then."""
        if self.uses % _LIST_AGAIN == 0:
            self.rows = [(weakref.ref(module), path) for path, module in root.named_modules()]
        self.uses += 1
        return [module.training for reference, _ in self.rows if (module := reference()) is not None]


class TrainingFlagsFact:
    """Records ``module.training`` of all modules of a model when it differs from the last forward of that mode."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._known: weakref.WeakKeyDictionary[nn.Module, _Modules] = weakref.WeakKeyDictionary()

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        modules = self._known.get(call.root)
        if modules is None:
            modules = self._known[call.root] = _Modules()
        flags = modules.flags(call.root)
        if flags != modules.reported.get(call.step.mode):
            modules.reported[call.step.mode] = flags
            call.forward.records.add_fact(self._fact(call.root, modules, call.forward.grad), "forward")

    def evaluation_began(self, call: ForwardCall) -> None:
        """The first forward of an evaluation is about to run."""
        self.forward_began(call)

    def mode_changed(self, call: ForwardCall) -> None:
        """A forward that is not captured is about to run, in another mode than the last one."""
        modules = self._known.get(call.root)
        if modules is not None and modules.changes < _MOST_CHANGES:
            modules.changes += 1
            self.forward_began(call)

    def _fact(self, root: nn.Module, modules: _Modules, gradients: bool) -> facts.TrainingFlags:
        by_path: dict[str, bool] = {}
        different: list[tuple[str, str, bool]] = []
        sensitive: dict[str, list[int]] = {}
        for reference, path in modules.rows:
            module = reference()
            if module is None:
                continue
            kind, by_path[path] = type(module).__name__, module.training
            if module.training != by_path.get(path.rpartition(".")[0], root.training):
                place = self._models.module(module)
                different.append((place.path if place is not None else path, kind, module.training))
            if _is_sensitive(module):
                sensitive.setdefault(kind, [0, 0])[0 if module.training else 1] += 1
        return facts.TrainingFlags(
            type(unwrap(root)).__name__,
            root.training,
            len(by_path),
            sum(by_path.values()),
            # Only where a flag differs from that of the module around it: enough to know all.
            tuple(different[:_MOST_NAMED]),
            len(different),
            # Of those that act on it.
            {kind: (on, off) for kind, (on, off) in sensitive.items()},
            sum(not parameter.requires_grad for parameter in root.parameters()),
            gradients,
        )


def _is_sensitive(module: nn.Module) -> bool:
    """Whether a module of PyTorch computes otherwise in training: drops elements, or takes the batch's statistics."""
    kind = type(module).__name__
    if "Dropout" in kind:
        return getattr(module, "p", 1.0) != 0
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return module.dropout != 0
    return "BatchNorm" in kind or isinstance(module, nn.RReLU)


def _with_draws(fact: facts.Membership, compared: Sequence[_Compared]) -> facts.Membership:
    """The fact with the names of weights that are as they were drawn."""
    drawn, written_once = [], []
    for name, as_drawn, as_written in compared:
        if as_drawn is not None and as_drawn():
            drawn.append(name)
        elif as_written is not None and as_written():
            written_once.append(name)
    return replace(fact, drawn=tuple(drawn), written_once=tuple(written_once))


class MembershipFact:
    """Compares the parameters of the optimizers with those of the models."""

    def __init__(self, port: Port, models: Models, subjects: ObjectNames, leave: ExitStack) -> None:
        self._port = port
        self._models = models
        self._subjects = subjects
        leave.callback(calls.OPTIMIZER_GIVEN.listen(port.guard, after=subjects.optimizer_given))
        self._drawn = DrawnWeights(port, models, leave)
        self._captures = 0
        self._seen: tuple[Any, ...] = ()
        self._reported = facts.Membership()
        # Steps of optimizers, by id, that have had no parameter of any model so far; None once one had.
        self._strange: dict[int, int | None] = {}

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward is about to run."""
        self._drawn.begin_training()

    def update_ended(self, update: Update) -> None:
        """A captured step's update is over, and gradients still show which parameters it used."""
        self._subjects.name("optimizer", update.optimizer)
        self._captures += 1
        optimizers = self._subjects.optimizers()
        held = [len(group["params"]) for each in optimizers for group in each.param_groups]
        seen = (len(self._models), *held, None, *(tree.trainable() for tree in self._models))
        # Not all changes change these numbers: examined again at the first, second, fourth, eighth capture.
        if seen == self._seen and not is_power_of_two(self._captures):
            return
        self._seen = seen
        self._notify(update.step.records, optimizers, update.optimizer)

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Any optimizer has stepped: one whose parameters are all foreign makes no step of the run."""
        if self._strange.get(id(optimizer), 0) is not None:
            self._strange_step(optimizer)

    def _strange_step(self, optimizer: Optimizer) -> None:
        if len(self._strange) > _MOST_STRANGE:
            self._strange.clear()
        steps = (self._strange.get(id(optimizer)) or 0) + 1
        known = any(self._models.in_a_tree(parameter) for parameter in parameters_of(optimizer))
        self._strange[id(optimizer)] = None if known or steps == _STRANGE_STEPS else steps
        if not known and steps == _STRANGE_STEPS and len(self._models):
            self._subjects.name("optimizer", optimizer)
            self._notify(self._port.records.current(), self._subjects.optimizers(), optimizer)

    def _notify(self, records: CapturedRecords, optimizers: list[Optimizer], stepped: Optimizer) -> None:
        fact = self._fact(optimizers, stepped)
        if fact != self._reported:
            self._reported = fact
            compared = self._compared_with_draws(optimizers)
            records.add_fact(DeferredFact(facts.Membership, lambda: _with_draws(fact, compared)), "update")

    def _fact(self, optimizers: list[Optimizer], stepped: Optimizer) -> facts.Membership:
        models = list(self._trainable())
        with_gradient = [parameter for of_model, _ in models for parameter, _ in of_model if parameter.grad is not None]
        # Also by optimizers that are never called.
        made = self._subjects.made_optimizers(with_gradient)
        owned = Counter(map(id, itertools.chain.from_iterable(map(parameters_of, made))))
        by_optimizer = {}
        for optimizer in optimizers:
            parameters = parameters_of(optimizer)
            by_optimizer[self._subjects.name("optimizer", optimizer)] = self._of(optimizer, parameters)
        left_out, left_out_beside, twice, trainable = [], [], [], 0
        for of_model, frozen in models:
            trainable += len(of_model)
            without = [(parameter, name) for parameter, name in of_model if id(parameter) not in owned]
            left_out += without
            # An optimizer that was made before the head was replaced may hold nothing else but frozen parameters.
            if len(without) < len(of_model) or any(id(parameter) in owned for parameter in frozen):
                left_out_beside += [name for parameter, name in without if parameter.grad is not None]
            twice += [name for parameter, name in of_model if owned[id(parameter)] > 1]
        used = [(p, self._models.parameter(p)) for p in parameters_of(stepped) if p.requires_grad]
        return facts.Membership(
            self._subjects.name("optimizer", stepped),
            by_optimizer,
            trainable,
            left_out=_named(name for _, name in left_out),
            left_out_with_gradient=sum(parameter.grad is not None for parameter, _ in left_out),
            # Of models of which an optimizer has other parameters: no model that only passes gradients on.
            left_out_beside=_named(left_out_beside),
            without_gradient=_named(place.name for p, place in used if place is not None and p.grad is None),
            twice=_named(twice),
        )

    def _compared_with_draws(self, optimizers: list[Optimizer]) -> list[_Compared]:
        """Weights with two or more axes that nothing trains, with the comparisons that show how they were drawn."""
        groups = itertools.chain.from_iterable(optimizer.param_groups for optimizer in optimizers)
        idle = {id(parameter) for group in groups if group.get("lr") == 0 for parameter in group["params"]}
        parameters = itertools.chain.from_iterable(
            tree.owner.parameters() for tree in self._models if tree.owner is not None
        )
        kept = (each for each in parameters if each.dim() > 1 and (not each.requires_grad or id(each) in idle))
        placed = ((each, self._models.parameter(each)) for each in itertools.islice(kept, _MOST_KEPT))
        return [
            (place.name, self._drawn.drawn.comparison(each), self._drawn.written_once.comparison(each))
            for each, place in placed
            if place is not None
        ]

    def _of(self, optimizer: Optimizer, parameters: list[Tensor]) -> facts.HeldParameters:
        placed = [(parameter, self._models.parameter(parameter)) for parameter in parameters]
        # A tensor of no module has a name too, where no optimizer of a model was known before.
        known = {id(p) for tree in self._models if (owner := tree.owner) is not None for p in owner.parameters()}
        foreign = [p for p in parameters if id(p) not in known and not self._models.in_a_tree(p)]
        frozen = [place.name for p, place in placed if place is not None and not p.requires_grad]
        return facts.HeldParameters(
            type(optimizer).__name__,
            len(parameters),
            _named(frozen),
            len(foreign),
            sum(parameter.grad is not None for parameter in foreign),
            tuple(tuple(parameter.shape) for parameter in foreign[:_MOST_NAMED]),
        )

    def _trainable(self) -> Iterable[tuple[list[tuple[Tensor, str]], list[Tensor]]]:
        """For each model its parameters that may be trained, with their names in the run, and its frozen ones."""
        for tree in self._models:
            owner = tree.owner
            parameters: list[Tensor] = list(owner.parameters()) if owner is not None else []
            named: list[tuple[Tensor, str]] = [
                (parameter, place.name)
                for parameter in parameters
                if parameter.requires_grad and (place := tree.parameter(parameter)) is not None
            ]
            yield named, [parameter for parameter in parameters if not parameter.requires_grad]


def _named(names: Iterable[str]) -> facts.NamedParameters:
    every = tuple(names)
    return facts.NamedParameters(len(every), every[:_MOST_NAMED])
