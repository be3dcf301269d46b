"""Runs programs of the zoo without watchglass, one after the other, each in a fork of a process with its libraries.

    python bare.py 1 digits_mlp.py plain,0,plain.json adamw,1,adamw.json

The first argument is the number of ranks that train a program together.

Importing PyTorch and scikit-learn costs more than most programs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import signal
import socket
import sys
import traceback
from functools import partial
from types import FrameType

from running import LIMIT_S

_LIBRARIES = ("torch", "torch._dynamo", "sklearn.datasets", "sklearn.metrics", "sklearn.model_selection")


def main(ranks: str, script: str, *trials: str) -> None:
    """Run a script once for each ``NAME,SEED,FILE``: its figures are written to the file."""
    for library in _LIBRARIES:
        importlib.import_module(library)
    for trial in trials:
        name, seed, log = trial.split(",", 2)
        arguments = [script, name, "--seed", seed, "--measure", "--figures", log]
        meeting = _free_port() if int(ranks) > 1 else 0
        children: list[int] = []
        for rank in range(int(ranks)):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                if meeting:
                    _join(rank, ranks, meeting)
                _run(arguments)
            children.append(child)
        signal.signal(signal.SIGTERM, partial(_end, children))
        _wait(children)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _join(rank: int, ranks: str, port: int) -> None:
    """What torchrun gives a rank."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks,
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip


def _wait(children: list[int]) -> None:
    """Wait for the processes of one program. Where one fails the others would wait for it, and are ended."""
    waiting = set(children)
    while waiting:
        child, status = os.wait()
        waiting.discard(child)
        for other in waiting if status else ():
            os.kill(other, signal.SIGKILL)


def _end(children: list[int], number: int, frame: FrameType | None) -> None:
    """An interrupted score ends this process: end the program too."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    sys.exit(1)


def _run(arguments: list[str]) -> None:
    """Run a program in this process, with what Python does when it ends."""
    sys.argv = arguments
    signal.alarm(LIMIT_S)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except Exception:
        # That a program fails is a result; it is in the output.
        traceback.print_exc()
        sys.exit(1)
    sys.exit()


if __name__ == "__main__":
    main(*sys.argv[1:])
