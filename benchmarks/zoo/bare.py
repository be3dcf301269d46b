"""Runs programs of the zoo without watchglass, one after the other, each in a fork of a process with its libraries.

    python bare.py digits_mlp.py plain,0,plain.json adamw,1,adamw.json

Importing PyTorch and scikit-learn costs more than most programs.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
import traceback
from functools import partial
from types import FrameType

from running import LIMIT_S

_LIBRARIES = ("torch", "torch._dynamo", "sklearn.datasets", "sklearn.metrics", "sklearn.model_selection")


def main(script: str, *trials: str) -> None:
    """Run a script once for each ``NAME,SEED,FILE``: its figures are written to the file."""
    for library in _LIBRARIES:
        importlib.import_module(library)
    for trial in trials:
        name, seed, log = trial.split(",", 2)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _run([script, name, "--seed", seed, "--measure", "--log", log])
        signal.signal(signal.SIGTERM, partial(_end, child))
        os.waitpid(child, 0)


def _end(child: int, number: int, frame: FrameType | None) -> None:
    """An interrupted score ends this process: end the program too."""
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
    sys.exit()


if __name__ == "__main__":
    main(*sys.argv[1:])
