"""One error per situation, each also a builtin. Its message is one line: the rule broken, the value, the cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class WatchglassError(Exception):
    """Base of every error that watchglass raises on purpose. The message needs no context.

    The command line prints it as one line and exits with 2.
    """

    def __str__(self) -> str:
        # Some builtins format their arguments, FileNotFoundError as errno and strerror; this is a complete sentence.
        return str(self.args[0]) if self.args else ""


class InvalidValueError(WatchglassError, ValueError):
    """A value that an option, parameter or record does not allow."""


class UnknownNameError(WatchglassError, LookupError):
    """The name of a rule, collection, tensor or parameter that does not exist. The message suggests similar names."""


class StepNotReadyError(UnknownNameError):
    """A step or value that the run has not recorded yet and may still record. The caller may wait for it."""


class StepNotRecordedError(UnknownNameError):
    """A step or value that was not recorded and never will be, since the run is past its step. Do not wait for it."""


class EndOfRunError(UnknownNameError):
    """A step beyond the last one of a run that has ended."""


class MissingFileError(WatchglassError, FileNotFoundError):
    """A script, rule file or run that does not exist at the given place."""


class RunExistsError(WatchglassError, FileExistsError):
    """A run, attempt, worker or object that exists already and is not overwritten."""


class NotARunError(WatchglassError, ValueError):
    """A folder without a manifest, or with a manifest that watchglass did not write."""


class FormatVersionError(WatchglassError, ValueError):
    """A run in another major version of the format."""


class DamagedDataError(WatchglassError, ValueError):
    """Bytes in a run that differ from what was written. The message names file and offset."""


class ProfileRefusedError(WatchglassError, RuntimeError):
    """A running job that was asked to profile some steps and has not: the message has its reason."""


class CompactedError(WatchglassError, RuntimeError):
    """The segments being read were replaced by a compacted generation. The reader must start again."""


class StoreError(WatchglassError, OSError):
    """The store refused or failed: read-only, full, unreachable."""


class ForkedError(StoreError):
    """A store that this process cannot use, because its parent used it before the fork. Do not retry."""


class NoRoomError(StoreError):
    """A bounded place is full. Nothing was written, so the caller may write the same again under the same name."""


class PluginFileError(WatchglassError, ImportError):
    """A file of custom rules or actions that cannot be imported, or lacks the class."""


class LaunchError(WatchglassError, RuntimeError):
    """A training run that cannot be started as requested."""


class MissingExtraError(WatchglassError, ImportError):
    """An optional dependency that is not installed; the message names the extra."""


@contextmanager
def importing(what: str, extra: str) -> Iterator[None]:
    """A context for imports that an extra brings.

    Args:
        what: The start of the message: ``"Webhook needs cloudevents"``.
        extra: The extra.

    Raises:
        MissingExtraError: One of them is missing.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{what} ({error}); install it with: pip install 'watchglass[{extra}]'") from error


class ClusterError(WatchglassError, RuntimeError):
    """A Ray cluster that is unreachable, or that cannot run a task."""


class UndeliverableError(WatchglassError, RuntimeError):
    """Raised by an action for an event that it can never deliver. The event is not delivered again."""


class DeliverLater(WatchglassError, RuntimeError):
    """Raised by an action whose receiver requested a later delivery.

    Args:
        message: The reason.
        after_s: Minimum wait in seconds; None for the usual pause.
    """

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


#: Exit status of a run that watchglass stopped on request (``--stop-on`` or an action).
#: Outside 64..78 (sysexits.h), 99 and 100 (grid schedulers requeue on them) and 128 and above (signals).
EXIT_STOPPED = 86


class TrainingStopped(SystemExit):
    """Raised in the main thread of the training process, at a step boundary, when a stop was requested.

    Derives from :class:`SystemExit`, not :class:`Exception`, so that a loop which catches ``Exception`` does not
    swallow it. ``finally`` blocks and context managers run. The exit status is :data:`EXIT_STOPPED`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_STOPPED)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class MemoryBudgetError(WatchglassError, MemoryError):
    """Reading the runs needs more memory than the limit of this process."""


def in_a_line(error: Exception) -> str:
    """The error of one run of many in a line; also for an unexpected error."""
    if isinstance(error, WatchglassError):
        return str(error)
    if isinstance(error, MemoryError):
        return "needs more memory than this process may use"
    return f"{type(error).__name__}: {' '.join(str(error).split())} (unexpected)"
