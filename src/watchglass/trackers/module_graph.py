"""The modules of a model as nodes of a graph: containers are scopes, edges follow the order of calls."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watchglass.records import Role, facts

if TYPE_CHECKING:
    from watchglass.run import Run


@dataclass(frozen=True)
class Node:
    """A module that holds no other module."""

    name: str  #: Its path with ``/`` between the parts, which TensorBoard shows as scopes.
    kind: str  #: The name of its class.
    inputs: tuple[str, ...] = ()  #: Nodes that were called before it.
    shape: tuple[int, ...] | None = None  #: Shape of its first recorded output.


def module_graph(run: Run) -> list[Node]:
    """The modules of the models of a run; none where it recorded none, as of boosted trees.

    An edge leads from each module to the next one of its model whose output was recorded. Branches and sums of a model
    are operations between its modules: the graph does not show them.
    """
    types: dict[str, str] = {}
    for model in run.facts(facts.ModelDescription):
        types |= model.module_types or {}
    leaves = _leaves(types)
    outputs = [info for info in run.worker().infos().values() if info.role is Role.OUTPUT and info.module in leaves]
    called = {info.module: info for info in sorted(outputs, key=lambda info: info.tensor_id)}
    name_of = _Names()
    nodes, before = [], dict[int | None, str]()  # the node before, by model
    for path, info in called.items():
        name = name_of(path)
        inputs = (before[info.model],) if info.model in before else ()
        nodes.append(Node(name, types[path], inputs, info.shape))
        before[info.model] = name
    return nodes + [Node(name_of(path), types[path]) for path in leaves if path not in called]


def _leaves(types: Mapping[str, str]) -> list[str]:
    """Paths without a path below them."""
    holders = {path.rpartition(".")[0] for path in types if path}
    return [path for path in types if path not in holders]


class _Names:
    """Paths as names of nodes, a different one for each path, also where signs are left out."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], str] = {(): ""}
        self._used = set[str]()

    def __call__(self, path: str) -> str:
        parts = tuple((path or "model").split("."))
        for length in range(1, len(parts) + 1):
            if parts[:length] not in self._known:
                self._known[parts[:length]] = self._new(self._known[parts[: length - 1]], parts[length - 1])
        return self._known[parts]

    def _new(self, above: str, part: str) -> str:
        """TensorBoard's own names begin with a letter or digit and have few other signs."""
        plain = re.sub(r"[^A-Za-z0-9_.\\-]", "_", part)
        wanted = f"{above}/{plain if plain[:1].isalnum() else f'm{plain}'}".removeprefix("/")
        choices = itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count(2)))
        found = next(each for each in choices if each not in self._used)
        self._used.add(found)
        return found
