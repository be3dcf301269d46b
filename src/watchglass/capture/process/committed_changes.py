"""Changes that are committed for this process: a stop, windows of steps to be profiled, settings of the profiler.

The recorder's thread adds them as it hears of them. The training thread applies them between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from watchglass.control import Commit, ProfileWindow, Stop
from watchglass.records import DeclaredFact, WindowRefusal


class CommittedChanges:
    """The changes that are committed and not applied yet. A stop stays: no TRAIN step begins after it.

    Args:
        add_fact: Records a fact of the process.
        change_settings: Changes settings of the profiler.
        profiles: Returns whether the profiler may record.
    """

    def __init__(
        self,
        add_fact: Callable[[DeclaredFact, str], None],
        change_settings: Callable[[Mapping[str, Any]], None],
        profiles: Callable[[], bool],
    ) -> None:
        self._add_fact, self._change_settings, self._profiles = add_fact, change_settings, profiles
        self.pending: list[Commit] = []  #: The committed changes, oldest first.
        #: Called with what is profiled, the TRAIN steps and the number of each request for a profiled window, in the
        #: training thread, until one returns True.
        self.on_window: list[Callable[[str, range, int], bool]] = []

    @property
    def stopping(self) -> bool:
        """Whether a stop has been committed."""
        return any(isinstance(commit.change, Stop) for commit in self.pending[:])

    def add(self, commit: Commit) -> None:
        """Take a change. On the recorder's thread."""
        self.pending.append(commit)

    def stop_before(self, step: int) -> Stop | None:
        """The stop that lets no TRAIN step begin from ``step`` on; None if there is none."""
        for commit in self.pending[:]:
            if isinstance(commit.change, Stop) and step >= commit.at_step:
                return commit.change
        return None

    def apply_to_profiler(self) -> None:
        """Change the profiler's settings, and give requests for windows to the profilers. In the training thread."""
        for commit in self.pending[:]:
            if not isinstance(commit.change, ProfileWindow):
                continue
            self.pending.remove(commit)
            if commit.change.settings:
                self._change_settings(commit.change.settings)
            if commit.change.steps:
                self._request_window(commit, commit.change)

    def _request_window(self, commit: Commit, window: ProfileWindow) -> None:
        """Give a request to the profiler that takes it; refuse it if none does."""
        steps = range(commit.at_step, commit.at_step + window.steps)
        off = not self._profiles()
        if not off and any(take(window.profile, steps, commit.number) for take in self.on_window):
            return
        reason = "no loop has been seen whose training steps could be profiled so"
        if off:
            reason = "the profiler is off, by --no-profiler, profiler=False or watchglass profile --off"
        asked = f"{steps.start}:{steps.stop}"
        self._add_fact(WindowRefusal(steps.start, steps.stop, reason, commit.number, asked), window.profile)
