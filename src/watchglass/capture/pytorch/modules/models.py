"""Which modules are models: found from the outermost calls, or given by the user; named through their owner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn

from watchglass.capture.model_numbers import FrameworkNumbers, ModelNumbers
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.pytorch.modules.carried_state import CarriedState
from watchglass.capture.pytorch.modules.module_tree import ModuleTree, Parents, inside, unwrap

#: Tensors of no module, after which those that are gone are forgotten.
_MOST_LOOSE = 256


class Models:
    """The module trees of one run.

    A model gets its number when it is first trained, or when an evaluation of it is first recorded. So a teacher or a
    target network that only helps to train another model gets none. Until then it has a provisional one, below zero,
    and nothing is captured of its tensors. Places, and iterating, are of models with numbers only.

    Args:
        numbers: The numbers of all models.
    """

    def __init__(self, numbers: ModelNumbers) -> None:
        self.parents = Parents()
        self._own = FrameworkNumbers(numbers)
        #: The number of a model in facts: None where there is one.
        self.in_facts = numbers.in_facts
        self._trees: list[ModuleTree] = []
        # Trees without a number, and how many there have been: their provisional numbers are negative.
        self._waiting: list[ModuleTree] = []
        self._waited = 0
        # Final numbers by provisional ones.
        self._numbers: dict[int, int] = {}
        #: Called with a model's tree, None where that is gone, its provisional number and the one that it gets.
        self.on_numbered: Callable[[ModuleTree | None, int, int], None] = lambda tree, provisional, number: None
        #: Called with a module that a script gives to be watched and has made before anything was observed.
        self.on_given: Callable[[nn.Module], None] = lambda root: None
        self._roots: weakref.WeakKeyDictionary[nn.Module, ModuleTree] = weakref.WeakKeyDictionary()
        self._called: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._owned: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Trained tensors that belong to no module, by identity.
        self._loose: dict[int, tuple[weakref.ref[Tensor], ParameterPlace]] = {}
        #: Which arguments of each are its state.
        self.carried = CarriedState()
        #: Number of additions: after one, a failed look-up may succeed.
        self.additions = 0

    def __iter__(self) -> Iterator[ModuleTree]:
        return iter(self._trees)

    def __len__(self) -> int:
        """How many models there are, those without numbers included."""
        return len(self._trees) + len(self._waiting)

    def knows(self, root: nn.Module) -> bool:
        """Whether this outermost module has been added."""
        return root in self._roots

    def is_owned(self, root: nn.Module) -> bool:
        """Whether a loop around PyTorch drives the steps of this outermost module."""
        return root in self._owned

    def own(self, root: nn.Module) -> None:
        """A loop around PyTorch drives the steps of this outermost module."""
        self._owned.add(root)

    def roots(self) -> list[nn.Module]:
        """The outermost modules that still live; a wrapper and what is inside it are one."""
        roots = list(self._roots)
        wrapped = {id(inner) for root in roots for inner in inside(root)}
        return [root for root in roots if id(root) not in wrapped]

    def called(self, root: nn.Module, train_step: int) -> None:
        """An outermost module is called with gradients at a TRAIN step, or ahead of it."""
        if len(self._roots) > 1:
            self._called[root] = train_step

    def only_root(self, train_step: int | None = None) -> nn.Module | None:
        """The outermost module where there has been but one.

        Args:
            train_step: Those that were not called with gradients since this step do not count: of training runs that
                are over, and those that only help to train another model.
        """
        roots = self.roots()
        if train_step is not None and len(roots) > 1:
            roots = [root for root in roots if self._called.get(root, -1) >= train_step]
        return roots[0] if len(roots) == 1 and (train_step is not None or len(self) == 1) else None

    def add(self, root: nn.Module) -> ModuleTree:
        """A module was called from outside any other; returns the tree that it belongs to, maybe without a number."""
        owner = unwrap(self.parents.owner(root))
        # Nothing is kept of models that are gone.
        self._trees = [tree for tree in self._trees if tree.owner is not None]
        self._waiting = [tree for tree in self._waiting if tree.owner is not None]
        for tree in (*self._trees, *self._waiting):
            if tree.owner is owner or tree.module(unwrap(root)) is not None:
                break
        else:
            self._waited += 1
            tree = ModuleTree(owner, -self._waited)
            self._waiting.append(tree)
        self._roots[root] = tree
        return tree

    def number(self, root: nn.Module) -> int:
        """Number of the model that an outermost module belongs to, or a provisional one."""
        tree = self._roots.get(root)
        return 0 if tree is None else tree.number

    def settle(self, number: int) -> int:
        """A model is trained, or an evaluation of it is recorded: returns its number for the one that is known."""
        if number >= 0:
            return number
        settled = self._numbers.get(number)
        if settled is None:
            tree = next((tree for tree in self._waiting if tree.number == number), None)
            settled = self._numbers[number] = self._own.new(None if tree is None else tree.owner)
            self.additions += 1
            if tree is not None:
                self._waiting.remove(tree)
                tree.renumber(settled)
                self._trees.append(tree)
            self.on_numbered(tree, number, settled)
        return settled

    def trainable(self, root: nn.Module) -> bool:
        """Whether any parameter of an outermost module's model may be trained."""
        tree = self._roots.get(root)
        return tree is None or any(parameter.requires_grad for parameter in tree.parameters())

    def trained(self, parameters: Iterable[Tensor]) -> None:
        """These parameters are trained: models of them that have no number get one."""
        if not self._waiting:
            return
        for parameter in parameters:
            for tree in self._waiting:
                if tree.parameter(parameter) is not None:
                    self.settle(tree.number)
                    break

    def add_loose(self, tensor: Tensor, name: str) -> None:
        """A tensor that belongs to no module is trained, under this name."""
        known = self._loose.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1].name != name:
            self._loose[id(tensor)] = weakref.ref(tensor), ParameterPlace(name, "", Place("", "", 0))
            self.additions += 1
            if len(self._loose) > _MOST_LOOSE:
                self._loose = {number: each for number, each in self._loose.items() if each[0]() is not None}

    def module(self, module: nn.Module) -> Place | None:
        """Place of a module in any tree with a number."""
        for tree in self._trees:
            place = tree.module(module)
            if place is not None:
                return place
        return None

    def parameter(self, parameter: Tensor) -> ParameterPlace | None:
        """Place of a parameter in any tree with a number, or in none; trees are not read again for unknown ones."""
        for tree in self._trees:
            place = tree.parameter(parameter)
            if place is not None:
                return place
        known = self._loose.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else None

    def in_a_tree(self, parameter: Tensor) -> bool:
        """Whether a parameter belongs to a module."""
        return any(tree.parameter(parameter) is not None for tree in (*self._trees, *self._waiting))

    def owner(self, parameter: Tensor) -> nn.Module | None:
        """The topmost module of the model that a parameter belongs to, with a number or without."""
        found = (tree for tree in (*self._trees, *self._waiting) if tree.parameter(parameter) is not None)
        return next((tree.owner for tree in found), None)

    def holds(self, module: nn.Module) -> bool:
        """Whether a module belongs to a model, with a number or without."""
        return any(tree.module(module) is not None for tree in (*self._trees, *self._waiting))

    def refresh(self) -> None:
        """Read all trees again."""
        for tree in (*self._trees, *self._waiting):
            tree.refresh()
