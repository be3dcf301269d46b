"""The script as a child process: start, signals, and exit status as a shell reports it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from watchglass.config import TIMING
from watchglass.errors import LaunchError
from watchglass.launch.signals import SignalWatch

#: prctl(2): the signal to this process when its parent dies.
_PR_SET_PDEATHSIG = 1


def run_training(
    command: Sequence[str], environ: Mapping[str, str], signals: SignalWatch, look: Callable[[], None] = lambda: None
) -> subprocess.Popen[bytes]:
    """The training process once it has ended; its return code is ``-n`` when signal ``n`` ended it.

    The child shares standard streams, process group and terminal with this process, as if run by python. It handles
    each Ctrl-C itself, and this process waits for its end without a time limit.

    Args:
        command: Interpreter, flags, script and arguments.
        environ: The whole environment of the child.
        signals: The active signal watch, so that no signal is lost between the start and the wait.
        look: Called as soon as the child runs, then every second at least, and as soon as a child process has ended.

    Raises:
        LaunchError: The command cannot be started.
    """
    prctl = _load_prctl()
    launcher = os.getpid()

    def prepare() -> None:
        signals.restore_in_child()
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != launcher:  # the launcher died before prctl
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        child = subprocess.Popen(list(command), env=dict(environ), preexec_fn=prepare)
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    look()
    while child.poll() is None:
        arrival = signals.wait(TIMING.process_look_s)  # a signal ends the wait at once
        if arrival is not None and not arrival.shared:
            child.send_signal(arrival.number)
        look()
    return child


def exit_status(return_code: int) -> int:
    """The exit status as a shell reports it: ``128 + n`` for a process that signal ``n`` ended."""
    return 128 - return_code if return_code < 0 else return_code


def _load_prctl() -> ctypes._NamedFuncPointer | None:
    """``prctl``, looked up before the fork, so that the script does not outlive a killed launcher."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
