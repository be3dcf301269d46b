"""Runs programs of tests while JAX and its libraries are watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import watchglass
from watchglass import Run
from watchglass.capture import attach, loop


def watched(
    program: Callable[[], Any], path: Path, libraries: tuple[str, ...] = ("optax",), **settings: Any
) -> tuple[Any, Run]:
    """What a program returns while it is watched, and its run."""
    with watchglass.Hook(path, strict=True, **settings) as hook:
        for name in ("jax", *libraries):
            attach(hook.port, loop(name))
        found = program()
    return found, watchglass.open_run(path)
