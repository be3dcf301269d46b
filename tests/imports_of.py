"""What the modules of a package import of each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping


def imports(source: str, modules: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Those of some modules that a module's source imports, at whatever place.

    Args:
        source: The source.
        modules: For each module the names that it has from other modules and passes on; empty but for an ``__init__``.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in modules:
            for name in (alias.name for alias in node.names):
                inner = f"{node.module}.{name}"
                yield inner if inner in modules else modules[node.module].get(name, node.module)
