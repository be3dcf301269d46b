"""Stacks of a process that cannot record its own: a thread of it holds the interpreter's lock in compiled code."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from watchglass.store import Claim, Store, proof_of_worker

_log = logging.getLogger("watchglass")
#: Longest time that py-spy may take, while the evaluator waits for it.
_LONGEST_S = 10.0
#: Frames of a thread, the innermost ones, and threads that are kept, as of stacks that a process records itself.
_MOST_FRAMES, _MOST_THREADS = 32, 16


def stacks_of_worker(store: Store, claim: Claim, label: Mapping[str, Any]) -> list[dict[str, Any]]:
    """:func:`outside_stacks` of the process of a claim; [] unless it is proven to be the worker.

    Args:
        store: The store of the run.
        claim: The claim of the worker.
        label: The label of the worker's rings.
    """
    with proof_of_worker(store, claim, label) as unproven:
        reason = unproven()
        threads = [] if reason else outside_stacks(claim.pid)
        reason = reason or unproven()
    if reason:
        _log.info("the stacks of process %d are not read: %s", claim.pid, reason)
    return [] if reason else threads


def outside_stacks(pid: int) -> list[dict[str, Any]]:
    """Threads of a Python process on this machine, the main one first; [] where they cannot be read.

    They are read with py-spy, the extra ``stacks``, if it is installed and the system permits it: by default, Linux
    permits it for child processes and for root. The process is not stopped meanwhile.

    Args:
        pid: The process, which the caller has proven to be one of the run.

    Returns:
        Dicts with ``name``, ``trains`` (whether it is the main thread) and ``frames``, each as file, line and function,
        the innermost first.
    """
    command = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if command is None:
        return []
    arguments = [command, "dump", "--pid", str(pid), "--json", "--nonblocking"]
    try:
        answer = subprocess.run(arguments, capture_output=True, timeout=_LONGEST_S, check=True)
        threads = [_thread(each, pid) for each in json.loads(answer.stdout)]
    except subprocess.CalledProcessError as error:
        _log.info("py-spy could not read the stacks of process %d: %s", pid, error.stderr.decode(errors="replace"))
        return []
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError, KeyError) as error:
        _log.info("py-spy could not read the stacks of process %d: %s", pid, error)
        return []
    return sorted(threads, key=lambda thread: not thread["trains"])[:_MOST_THREADS]


def _thread(data: dict[str, Any], pid: int) -> dict[str, Any]:
    # Names are those of Python's module threading, which a process may not have imported.
    name, main = data["thread_name"], data["os_thread_id"] == pid
    frames = [[str(each["filename"]), int(each["line"]), str(each["name"])] for each in data["frames"][:_MOST_FRAMES]]
    return {"name": str(name or data["os_thread_id"]), "trains": main, "frames": frames}
