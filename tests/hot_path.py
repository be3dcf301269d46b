"""The hot-path law, observed from outside: what a training thread does between two steps while it is watched.

Run as a program, because an audit hook stays for the life of its process::

    python hot_path.py FOLDER      # for each case, FOLDER/CASE/found.json: what was done wrong, by what was tried

Each case has a forked process: the frameworks are imported once, and what one case imports later is new to the next.

Seen are, on the training's thread only: what Python audits (files, folders, sockets, processes, threads, imports),
calls of C functions that read, write or wait on what is open already, and everything that would wait for a device.
"""

from __future__ import annotations

import colorsys
import contextlib
import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

# The first optimizer of a process imports it, which takes longer than a case: here it is imported for all cases.
import torch._dynamo

import adapter_cases
from devices.fake_device import FakeDevice, OnDevice, move
from watchglass.capture import Hook
from watchglass.testing import AdapterCase

#: Steps before anybody looks (threads start, files open, code loads at the first captures), and until the end. Steps
#: that are alike take the fast path after eight.
STARTED, STEPS = 16, 32
#: The same where the law is broken on purpose, which shows at once.
SOON, SHORT = 3, 5
#: With this interval most steps look at nothing, and some at everything.
INTERVAL = 8

_AUDITED = (
    "open", "os.", "socket.", "subprocess.", "shutil.", "tempfile.", "pathlib.", "glob.", "mmap.", "fcntl.", "import",
    "ctypes.dlopen", "sqlite3.", "urllib.",
)  # fmt: skip
_CALLS = frozenset((
    "read", "readinto", "readline", "readlines", "write", "writelines", "flush", "fsync", "fdatasync", "truncate",
    "pread", "pwrite", "send", "sendall", "sendto", "recv", "connect", "accept", "poll", "select", "sleep", "stat",
    "start_new_thread", "start_joinable_thread",
))  # fmt: skip
_MODULES = frozenset(("_io", "io", "posix", "nt", "_socket", "select", "mmap", "time", "_thread"))


class Law:
    """Writes down what the thread that arms it does wrong. One per process."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._thread = 0
        self._io = True
        sys.addaudithook(self._audit)

    @property
    def armed(self) -> bool:
        """Whether the calling thread is being observed."""
        return self._thread == threading.get_ident()

    def arm(self, *, io: bool = True) -> None:
        """Look at the calling thread from now on; without ``io`` only at what it waits for."""
        self.broken = []
        self._thread = threading.get_ident()
        self._io = io
        sys.setprofile(self._profile if io else None)

    def disarm(self) -> None:
        """Stop observing."""
        sys.setprofile(None)
        self._thread = 0

    def note(self, what: str) -> None:
        """Something was done wrong."""
        if self.armed:
            self.broken.append(what)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._thread and self._io and event.startswith(_AUDITED) and self.armed:
            self.broken.append(f"{event} {arguments[:1]!r:.60}")

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        if event != "c_call" or argument.__name__ not in _CALLS:
            return
        owner = getattr(argument, "__self__", None)
        module = owner.__name__ if isinstance(owner, type(sys)) else type(owner).__module__
        if module in _MODULES:
            self.broken.append(f"{module}.{argument.__name__}")


class PlainCase(adapter_cases.PyTorchCase):
    """The PyTorch training without an evaluation and without looking at its loss: every step is like the one before."""

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()
            self.optimizer.step()
            after_step(step)


class OnDeviceCase(PlainCase):
    """The same on a device, which it never waits for by itself."""

    def __init__(self) -> None:
        super().__init__()
        move(self.model)
        self.inputs, self.labels = OnDevice(self.inputs), OnDevice(self.labels)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)


class EverythingOnDeviceCase(adapter_cases.EverythingCase):
    """The same with everything kept except records of loss functions: these run where the stand-in is not in force."""

    settings: ClassVar = {
        **adapter_cases.EverythingCase.settings,
        "collections": {
            name: True
            for name in adapter_cases.EverythingCase.settings["collections"]
            if name not in ("all", "labels", "predictions", "logsumexp")
        },
    }

    def prepare(self) -> None:
        move(self.model)
        self.inputs, self.labels = OnDevice(self.inputs), OnDevice(self.labels)
        super().prepare()


CASES: dict[str, type[AdapterCase]] = {
    "any loop": adapter_cases.NumPyCase,
    "PyTorch": adapter_cases.PyTorchCase,
    "PyTorch, steps alike": PlainCase,
    "PyTorch, on a device": OnDeviceCase,
    "PyTorch, everything": adapter_cases.EverythingCase,
    "PyTorch, everything on a device": EverythingOnDeviceCase,
    "XGBoost": adapter_cases.XGBoostCase,
}

#: Those whose training takes place on a device, under a law of its own.
ON_DEVICE = (OnDeviceCase, EverythingOnDeviceCase)

Misdeed = Callable[[], object]


def misdeeds(folder: Path, open_file: io.TextIOBase) -> dict[str, Misdeed]:
    """Ways to break the law, by name."""

    def write() -> None:
        open_file.write("x")
        open_file.flush()

    def load() -> None:
        del sys.modules[colorsys.__name__]
        import colorsys as again  # noqa: F401

    def start() -> None:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

    return {
        "open": lambda: open(os.devnull).close(),
        "write to an open file": write,
        "make a folder": lambda: os.makedirs(folder / "made", exist_ok=True),
        "list a folder": lambda: os.listdir(folder),
        "open a socket": lambda: socket.socket().close(),
        "start a process": lambda: subprocess.run(["true"], check=True),
        "start a thread": start,
        "import": load,
        "sleep": lambda: time.sleep(0),
    }


def waits() -> dict[str, Misdeed]:
    """Ways to wait for a device, by name."""
    there, host = OnDevice(torch.ones(1)), torch.zeros(1)
    return {
        "item": there.item,
        "float": lambda: float(there),
        "bool": lambda: bool(there),
        "tolist": there.tolist,
        "cpu": there.cpu,
        "to the host": lambda: there.to("cpu"),
        "a copy on the host": lambda: host.copy_(there),
        "nonzero": there.nonzero,
        "equal": lambda: torch.equal(there, there),
    }


def note_waits(law: Law) -> Callable[[str], None]:
    """Notes what waits for the device, clipping itself left out.

    It asks PyTorch's own C++ where gradients are, which sees the host's tensor in the one that stands for a device's.
    """

    def note(what: str) -> None:
        if not sys._getframe(2).f_code.co_filename.endswith("clip_grad.py"):
            law.note(what)

    return note


def observe(law: Law, case: AdapterCase, folder: Path | None, started: int, steps: int) -> list[str]:
    """Trains, watched where there is a folder; returns what is done wrong once everything has started."""

    def after_step(step: int) -> None:
        if step == started and not law.armed:
            law.arm()
        elif step == steps - 1:
            law.disarm()

    if started < 0:
        law.arm(io=False)
    if folder is None:
        case.train(steps, after_step)
        return law.broken
    with Hook(folder, save_interval=INTERVAL, **case.settings) as hook:
        case.attach(hook)
        case.train(steps, after_step)
    return law.broken


def observe_broken(law: Law, case: AdapterCase, folder: Path, broken: dict[str, Misdeed]) -> dict[str, list[str]]:
    """The same with a callback that commits all misdeeds once everything has started; what is seen of each."""
    seen: dict[str, list[str]] = {}
    with Hook(folder, save_interval=1, **case.settings) as hook:
        _sabotage(law, hook, broken, seen)
        case.attach(hook)
        try:
            case.train(SHORT, lambda step: law.arm() if step == SOON else None)
        finally:
            law.disarm()
    return seen


def _sabotage(law: Law, hook: Hook, broken: dict[str, Misdeed], seen: dict[str, list[str]]) -> None:
    """Commits the misdeeds, once, in the first callback after all has started."""
    guard, save_scalar = hook.port.guarded, hook.save_scalar

    def commit() -> None:
        if law.armed and not seen:
            for what, misdeed in broken.items():
                before = len(law.broken)
                misdeed()
                seen[what] = law.broken[before:]

    def sabotaged(callback: Callable[..., Any], **options: Any) -> Any:
        def broken(*arguments: Any) -> Any:
            commit()
            return callback(*arguments)

        broken.__qualname__ = "broken"
        return guard(broken, **options)

    def broken_save(*arguments: Any) -> None:
        commit()
        save_scalar(*arguments)

    hook.port.guarded = sabotaged  # type: ignore[assignment]
    hook.save_scalar = broken_save  # type: ignore[method-assign]


def found_in(make: type[AdapterCase], folder: Path) -> dict[str, list[str]]:
    """What was done wrong: unwatched, watched, and with each way to break the law."""
    law = Law()
    with contextlib.ExitStack() as stack:
        if make in ON_DEVICE:
            stack.enter_context(FakeDevice(note_waits(law)))
            broken = waits()
        else:
            broken = misdeeds(folder, stack.enter_context(open(os.devnull, "w")))
        return {
            "unwatched": observe(law, make(), None, STARTED, STEPS),
            # Nothing may wait for a device, not even at the first step.
            "watched": observe(law, make(), folder / "watched", -1 if make in ON_DEVICE else STARTED, STEPS),
            **observe_broken(law, make(), folder / "broken", broken),
        }


def main(folder: Path) -> int:
    """Observes each case in a process; returns how many of them failed."""
    processes = []
    for name, make in CASES.items():
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                (folder / name).mkdir()
                (folder / name / "found.json").write_text(json.dumps(found_in(make, folder / name)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        processes.append(os.waitpid(pid, 0)[1])
    return sum(map(bool, processes))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(Path(sys.argv[1])))
