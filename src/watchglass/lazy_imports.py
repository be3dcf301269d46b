"""Packages that import a name of their public interface from its file when the name is first used.

A program that needs one function of a package does not wait for the imports of all its other files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562).

    The same names are imported below ``if TYPE_CHECKING``, by "as" or with an ``__all__``, for type checkers; a test
    compares the two.

    Args:
        package: Its ``__name__``.
        homes: Names by the module within the package that defines them. No name may be that of a module of the package,
            which would take its place once it is imported.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)  # from now on it is found without asking here
        return value

    return get
