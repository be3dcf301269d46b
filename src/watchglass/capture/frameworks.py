"""The one table of known frameworks; the rest of capture names none of them.

A member writes its :class:`~watchglass.capture.loops.Loop`, :class:`~watchglass.capture.arrays.Arrays` or
:class:`~watchglass.capture.modules.Modules`, and a line of :data:`FRAMEWORKS`; docs/adapters.md writes whole ones.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """What a framework brings; each part is ``"package.module:Class"``, imported at first use, or "".

    Attributes:
        loop: Its :class:`Loop`.
        arrays: Its :class:`Arrays`.
        modules: Its :class:`Modules`.
        over: Import names of the frameworks that it stands on.
        drives: Whether its loop opens the steps; else it advises the loop of the framework below.
        discovers: Whether it finds the loops of a process, so that ``watchglass run`` needs no change to the script.
        add: Else, what a script must add, as a clause.
    """

    loop: str = ""
    arrays: str = ""
    modules: str = ""
    over: tuple[str, ...] = ()
    drives: bool = True
    discovers: bool = False
    add: str = ""


_PYTORCH = "watchglass.capture.pytorch"

#: Frameworks by import name. Each is listed below those that it stands on: if several know a model, the lowest drives.
FRAMEWORKS = {
    "torch": Entry(
        loop=f"{_PYTORCH}:PyTorchLoop",
        arrays=f"{_PYTORCH}:PyTorchArrays",
        modules=f"{_PYTORCH}:PyTorchModules",
        discovers=True,
    ),
    "xgboost": Entry(
        loop="watchglass.capture.xgboost:XGBoostLoop",
        add="give callbacks=[watchglass.xgboost_callback()] to xgboost.train, xgboost.cv or the estimator",
    ),
}


def members(part: str) -> Iterator[Any]:
    """Members of one contract, ``"loop"``, ``"arrays"`` or ``"modules"``, of imported frameworks, the outermost first.

    A framework that a process has not imported has made no object.
    """
    return (member(getattr(entry, part)) for entry in imported(part))


def imported(part: str) -> Iterator[Entry]:
    """Entries of imported frameworks that bring a part, the outermost first."""
    entries = ((name, FRAMEWORKS[name]) for name in reversed(FRAMEWORKS))
    return (entry for name, entry in entries if getattr(entry, part) and name in sys.modules)


@functools.cache
def member(home: str) -> Any:
    """What an entry names, made at first use.

    Raises:
        ImportError: The framework is not installed.
    """
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)()
