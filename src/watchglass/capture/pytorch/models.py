"""Which modules are models: found from the outermost calls, or given by the user; named through their owner."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor, nn

from watchglass.capture.pytorch.modules import ModuleTree, ParameterPlace, Parents, Place, inside, unwrap

#: Tensors of no module, after which those that are gone are forgotten.
_MOST_LOOSE = 256


class Models:
    """The module trees of one training, in the order in which they were first called."""

    def __init__(self) -> None:
        self.parents = Parents()
        self._trees: list[ModuleTree] = []
        # With the numbers of their models.
        self._roots: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._called: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._seen = 0
        # Tensors of no module that are trained all the same, by identity.
        self._loose: dict[int, tuple[weakref.ref[Tensor], ParameterPlace]] = {}
        #: How often something was added: what was looked up before may be found now.
        self.additions = 0

    def __iter__(self) -> Iterator[ModuleTree]:
        return iter(self._trees)

    def __len__(self) -> int:
        """Number of models seen."""
        return len(self._trees)

    @property
    def seen(self) -> int:
        """How many models were seen so far, those that are gone included."""
        return self._seen

    def knows(self, root: nn.Module) -> bool:
        """Whether this outermost module has been added."""
        return root in self._roots

    def roots(self) -> list[nn.Module]:
        """The outermost modules that still live; a wrapper and what is inside it are one."""
        roots = list(self._roots)
        wrapped = {id(inner) for root in roots for inner in inside(root)}
        return [root for root in roots if id(root) not in wrapped]

    def called(self, root: nn.Module, train_step: int) -> None:
        """An outermost module is called at a TRAIN step, or ahead of it."""
        if len(self._roots) > 1:
            self._called[root] = train_step

    @property
    def only_root(self) -> nn.Module | None:
        """The outermost module where there has been but one."""
        return self.only_root_since(None)

    def only_root_since(self, train_step: int | None) -> nn.Module | None:
        """The same of those that were called since a TRAIN step: models of training runs that are over do not count."""
        roots = self.roots()
        if train_step is not None and len(roots) > 1:
            roots = [root for root in roots if self._called.get(root, -1) >= train_step]
        return roots[0] if len(roots) == 1 and (train_step is not None or len(self._trees) == 1) else None

    def add(self, root: nn.Module) -> ModuleTree:
        """A module was called from outside any other (or given by the user); returns the tree it belongs to."""
        owner = unwrap(self.parents.owner(root))
        # Those that are gone stay gone: nothing of theirs is kept.
        self._trees = [tree for tree in self._trees if tree.owner is not None]
        for tree in self._trees:
            if tree.owner is owner or tree.module(unwrap(root)) is not None:
                break
        else:
            tree = ModuleTree(owner, self._seen)
            self._seen += 1
            self.additions += 1
            self._trees.append(tree)
        self._roots[root] = tree.number
        return tree

    def number(self, root: nn.Module) -> int:
        """Number of the model that an outermost module belongs to."""
        return self._roots.get(root, 0)

    def add_loose(self, tensor: Tensor, name: str) -> None:
        """A tensor that belongs to no module is trained, under this name."""
        known = self._loose.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1].name != name:
            self._loose[id(tensor)] = weakref.ref(tensor), ParameterPlace(name, "", Place("", "", 0))
            self.additions += 1
            if len(self._loose) > _MOST_LOOSE:
                self._loose = {number: each for number, each in self._loose.items() if each[0]() is not None}

    def module(self, module: nn.Module) -> Place | None:
        """Place of a module in any tree."""
        for tree in self._trees:
            place = tree.module(module)
            if place is not None:
                return place
        return None

    def parameter(self, parameter: Tensor) -> ParameterPlace | None:
        """Place of a parameter in any tree, or in none; the trees are not read again for unknown ones."""
        for tree in self._trees:
            place = tree.parameter(parameter)
            if place is not None:
                return place
        known = self._loose.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else None

    def in_a_tree(self, parameter: Tensor) -> bool:
        """Whether a parameter belongs to a module."""
        return any(tree.parameter(parameter) is not None for tree in self._trees)

    def refresh(self) -> None:
        """Read all trees again."""
        for tree in self._trees:
            tree.refresh()
