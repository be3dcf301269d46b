"""Which modules are models: found from the outermost calls, or given by the user; named through their owner."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor, nn

from watchglass.capture.pytorch.modules import ModuleTree, ParameterPlace, Parents, Place, unwrap


class Models:
    """The module trees of one training, in the order in which they were first called."""

    def __init__(self) -> None:
        self.parents = Parents()
        self._trees: list[ModuleTree] = []
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def __iter__(self) -> Iterator[ModuleTree]:
        return iter(self._trees)

    def __len__(self) -> int:
        """Number of models seen."""
        return len(self._trees)

    def knows(self, root: nn.Module) -> bool:
        """Whether this outermost module has been added."""
        return root in self._roots

    def roots(self) -> list[nn.Module]:
        """The outermost modules that still live."""
        return list(self._roots)

    def add(self, root: nn.Module) -> ModuleTree:
        """A module was called from outside any other (or given by the user); returns the tree it belongs to."""
        self._roots.add(root)
        owner = unwrap(self.parents.owner(root))
        for tree in self._trees:
            if tree.owner is owner or tree.module(unwrap(root)) is not None:
                return tree
        prefix = f"model_{len(self._trees) + 1}." if self._trees else ""
        tree = ModuleTree(owner, prefix)
        self._trees.append(tree)
        return tree

    def module(self, module: nn.Module) -> Place | None:
        """Place of a module in any tree."""
        for tree in self._trees:
            place = tree.module(module)
            if place is not None:
                return place
        return None

    def parameter(self, parameter: Tensor) -> ParameterPlace | None:
        """Place of a parameter in any tree; the trees are not read again for unknown ones."""
        for tree in self._trees:
            place = tree.parameter(parameter)
            if place is not None:
                return place
        return None

    def refresh(self) -> None:
        """Read all trees again."""
        for tree in self._trees:
            tree.refresh()
