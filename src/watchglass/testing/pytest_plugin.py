"""The pytest plugin: a fixture that asserts that a run is healthy.

watchglass is imported only when a test uses it.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def assert_trains_healthy(tmp_path: Path) -> Callable[..., Any]:
    """:func:`watchglass.testing.assert_trains_healthy`, whose runs are below the test's ``tmp_path``."""
    numbers = itertools.count(1)

    def check(run_or_callable: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        from watchglass.testing.healthy import assert_trains_healthy

        options.setdefault("run", tmp_path / f"watched-{next(numbers)}")
        return assert_trains_healthy(run_or_callable, **options)

    return check
