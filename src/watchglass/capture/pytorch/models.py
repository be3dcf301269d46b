"""Which modules are models: found from the outermost calls, or given by the user; named through their owner."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from watchglass.capture.pytorch.modules import ModuleTree, ParameterPlace, Parents, Place, inside, unwrap


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
        """The outermost modules that still live; a wrapper and what is inside it are one."""
        roots = list(self._roots)
        wrapped = {id(inner) for root in roots for inner in inside(root)}
        return [root for root in roots if id(root) not in wrapped]

    @property
    def only_root(self) -> nn.Module | None:
        """The outermost module where there has been but one."""
        roots = self.roots()
        return roots[0] if len(roots) == 1 and len(self._trees) == 1 else None

    def add(self, root: nn.Module) -> ModuleTree:
        """A module was called from outside any other (or given by the user); returns the tree it belongs to."""
        self._roots.add(root)
        owner = unwrap(self.parents.owner(root))
        for tree in self._trees:
            if tree.owner is owner or tree.module(unwrap(root)) is not None:
                return tree
        tree = ModuleTree(owner, len(self._trees))
        self._trees.append(tree)
        return tree

    def prefix(self, root: nn.Module) -> str:
        """What tells the names of an outermost module's model from those of others."""
        return next((tree.prefix for tree in self._trees if tree.module(unwrap(root)) is not None), "")

    def prefixes(self, parameters: Iterable[Tensor]) -> set[str]:
        """The same of the models that have any of these parameters."""
        return {tree.prefix for tree in self._trees for each in parameters if tree.parameter(each) is not None}

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
