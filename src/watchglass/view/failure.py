"""How a run failed, in words."""

from __future__ import annotations

import signal

from watchglass.records import Failure, Verdict
from watchglass.view.text import printable

#: Typical reasons for a signal that the script does not send.
_HINTS = {
    "SIGKILL": "sent by the system when memory runs out, and by schedulers at a limit",
    "SIGTERM": "sent by schedulers and torchrun",
    "SIGSEGV": "compiled code accessed invalid memory",
    "SIGABRT": "compiled code aborted",
    "SIGBUS": "a mapped file is on a full disk, or shared memory is full (often that of data workers)",
}

#: The same for other ends, by kind.
_NOTES = {
    "interrupt": "the steps before it were recorded; a run that resumes continues them",
    "exit": "the script ended itself; its last output may give the reason",
}


def failure_sentence(failure: Failure) -> str:
    """The failure and its place, without a full stop: ``"ValueError: bad batch (train.py:41)"``."""
    place = f" ({where})" if (where := _where(failure)) else ""
    name, message = printable(failure.type), printable(failure.message)
    if failure.kind == "exception":
        return f"{name or 'an exception'}{f': {message}' if message else ''}{place}"
    if failure.kind == "interrupt":
        return f"interrupted by Ctrl-C{place}"
    if failure.kind == "signal":
        return f"ended by {_signal(failure)}"
    if failure.kind == "lost":
        return "its process ended without reporting why, as a killed process does"
    status = "an exit status other than 0" if failure.exit_status is None else f"exit status {failure.exit_status}"
    return f"the script ended with {status}{f': {message}' if message else ''}{place}"


def ended_how(failure: Failure) -> str:
    """``"failed: ValueError: bad batch (train.py:41)"``, ``"interrupted by Ctrl-C (train.py:41)"``."""
    sentence = failure_sentence(failure)
    return sentence if failure.kind == "interrupt" else f"failed: {sentence}"


def failure_lines(verdict: Verdict) -> list[tuple[str, str]]:
    """Further lines, each with a label: the line of the script, typical reasons for the signal. None of other runs."""
    failure, lines = verdict.failure, []
    if failure is None:
        return []
    if failure.source:
        lines.append(("at", f"{_where(failure)}: {printable(failure.source)}"))
    hint = _HINTS.get(_signal(failure)) if failure.kind == "signal" else _NOTES.get(failure.kind)
    if hint is not None and (verdict.train_steps or failure.kind != "interrupt"):
        lines.append(("note", hint))
    return lines


def _where(failure: Failure) -> str:
    if not failure.file:
        return ""
    return printable(f"{failure.file}:{failure.line}" if failure.line > 0 else failure.file)


def _signal(failure: Failure) -> str:
    number = (failure.exit_status or 128) - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number > 0 else "a signal"
