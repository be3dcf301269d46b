"""How a training run is watched: the hook, its plan and budget, and one adapter per framework."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.capture.frameworks import FRAMEWORKS, Entry, Framework, Numbers, attach, framework, owner_of
    from watchglass.capture.hook import Hook
    from watchglass.capture.process_failure import failure_from, report_uncaught

_HOMES = {
    "process_failure": ("failure_from", "report_uncaught"),
    "frameworks": ("FRAMEWORKS", "Entry", "Framework", "Numbers", "attach", "framework", "owner_of"),
    "hook": ("Hook",),
}

__all__ = [
    "FRAMEWORKS", "Entry", "Framework", "Hook", "Numbers", "attach", "failure_from", "framework", "owner_of",
    "report_uncaught",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
