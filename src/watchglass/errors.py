"""One error per situation, each also a fitting builtin: one line with the rule broken, the value received, the cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class WatchglassError(Exception):
    """Base of every error that watchglass raises on purpose; the message is complete in itself.

    The command line prints it as one line and exits with 2.
    """


class InvalidValueError(WatchglassError, ValueError):
    """A value outside what an option, parameter or record allows."""


class UnknownNameError(WatchglassError, LookupError):
    """A name that nothing has: a rule, a collection, a tensor, a parameter. The message lists near names."""


class StepNotReadyError(UnknownNameError):
    """A step or value that the run has not recorded yet and may still record. The caller may wait for it."""


class StepNotRecordedError(UnknownNameError):
    """A step or value that was not recorded and never will be, since the run is past its step. Do not wait for it."""


class EndOfRunError(UnknownNameError):
    """A step beyond the last one of a run that has ended."""


class MissingFileError(WatchglassError, FileNotFoundError):
    """A script, rule file or run that is not where it was said to be."""

    def __str__(self) -> str:
        # FileNotFoundError formats its arguments as errno and strerror; ours is a finished sentence.
        return str(self.args[0]) if self.args else ""


class RunExistsError(WatchglassError, FileExistsError):
    """A run, attempt, worker or object that would have to be overwritten."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NotARunError(WatchglassError, ValueError):
    """A folder without a manifest, or with one that watchglass did not write."""


class FormatVersionError(WatchglassError, ValueError):
    """A run written in another major version of the format."""


class DamagedDataError(WatchglassError, ValueError):
    """Bytes in a run that cannot be what was written; the message names file and offset."""


class CompactedError(WatchglassError, RuntimeError):
    """Segments that were being read have been replaced by a compacted generation: reading must begin again."""


class StoreError(WatchglassError, OSError):
    """The store refused or failed: read-only, full, away."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ForkedError(StoreError):
    """A store that this process cannot use, since it was forked from one that has: trying again makes no sense."""


class NoRoomError(StoreError):
    """A bounded place is full. Nothing was written, so the same may be written again under the same name."""


class PluginFileError(WatchglassError, ImportError):
    """A file of custom rules or actions that cannot be imported, or holds no such class."""


class LaunchError(WatchglassError, RuntimeError):
    """A training that cannot be started as asked."""


class MissingExtraError(WatchglassError, ImportError):
    """An optional dependency that is not installed; the message names the extra."""


@contextmanager
def importing(what: str, extra: str) -> Iterator[None]:
    """A context for imports that an extra brings.

    Args:
        what: What needs them, as a sentence without full stop: ``"Webhook needs cloudevents"``.
        extra: The extra.

    Raises:
        MissingExtraError: One of them is missing.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{what} ({error}); install it with: pip install 'watchglass[{extra}]'") from error


class ClusterError(WatchglassError, RuntimeError):
    """A Ray cluster that cannot be reached, or that cannot do what it was asked."""


class UndeliverableError(WatchglassError, RuntimeError):
    """Raised by an action for an event that it will never be able to deliver: it is not tried again."""


class DeliverLater(WatchglassError, RuntimeError):
    """Raised by an action that was asked to come again later.

    Args:
        message: Why.
        after_s: Seconds to wait at least; None for the usual pause.
    """

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


#: Exit status of a training that watchglass stopped because it was asked to (``--stop-on`` or an action).
#: Outside 64..78 (sysexits.h), 99 and 100 (grid schedulers requeue on them) and 128 and above (signals).
EXIT_STOPPED = 86


class TrainingStopped(SystemExit):
    """Raised in the training's main thread at a step boundary when a stop was asked for.

    Derives from :class:`SystemExit`, not :class:`Exception`, so that a loop which catches ``Exception`` does not
    swallow it, while ``finally`` and context managers see it. The exit status is :data:`EXIT_STOPPED`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_STOPPED)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class MemoryBudgetError(WatchglassError, MemoryError):
    """What is read of runs would take more memory than this process allows itself."""


def in_a_line(error: Exception) -> str:
    """What is wrong with one run of many, in a line, also where it is a fault of ours that nobody expected."""
    if isinstance(error, WatchglassError):
        return str(error)
    if isinstance(error, MemoryError):
        return "it takes more memory than this process may have"
    return f"{type(error).__name__}: {' '.join(str(error).split())} (not expected)"
