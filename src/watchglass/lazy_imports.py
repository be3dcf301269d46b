"""Packages that import a name of their public interface from its file when the name is first used.

A program that needs one function of a package does not wait for the imports of all its other files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562).

    The public names are those that the package imports below ``if TYPE_CHECKING``, so each is written once, for type
    checkers, import contracts and programs alike. They are read from the source at the first access. No name but one
    that is imported from the package itself may be that of a module of the package, which would take its place once it
    is imported.

    Args:
        package: Its ``__name__``.
    """
    home_of: dict[str, str] = {}

    def get(name: str) -> Any:
        if not home_of:
            home_of.update(_homes(package))
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)  # later accesses do not come here
        return value

    return get


def named(home: str) -> Any:
    """What ``"package.module:Name"`` names, imported now: a part that the importing code must not depend on.

    Raises:
        ImportError: The module, or a package that it needs, is not there.
    """
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def _homes(package: str) -> dict[str, str]:
    """The names below ``if TYPE_CHECKING``, with the modules that they are imported from."""
    import ast  # here, for `import watchglass` reads no names
    import linecache

    module = sys.modules[package]
    source = "".join(linecache.getlines(str(module.__file__), vars(module)))  # also out of an archive
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            imports = [each for each in node.body if isinstance(each, ast.ImportFrom)]
            return {alias.name: str(each.module) for each in imports for alias in each.names}
    raise ImportError(f"{package} has no block 'if TYPE_CHECKING' with its public names")
