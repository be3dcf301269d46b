"""What a test may leave behind: nothing. A snapshot before, one after, and sentences about the difference."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

#: Threads and processes that were asked to end may need a moment; the wait is spent only on a leak.
PATIENCE_S = 30.0

OURS = "watchglass"

#: Set by pytest or by importing third parties, and nothing of ours.
FOREIGN_VARIABLES = (
    "PYTEST_", "KMP_", "OMP_", "TORCH_", "TORCHINDUCTOR_", "PL_", "CUBLAS_", "TOKENIZERS_", "TQDM_", "TRITON_",
    "_RJEM_",
)  # fmt: skip

#: Packages whose import puts finders on ``sys.meta_path``.
FOREIGN_FINDERS = (
    "six",
    "botocore",
    "_distutils_hack",
    "setuptools",
    "_pytest",
    "torch",
    "__editable__",
    "hypothesis",
    "absl",
)

#: Processes and threads that third parties keep for the life of the interpreter, and the servers of one test session.
FOREIGN_PROCESSES = (
    "multiprocessing.resource_tracker", "multiprocessing.forkserver", "loky.backend.resource_tracker",
    "preloaded/server.py",
)  # fmt: skip
FOREIGN_THREADS = ("tqdm", "_pytest", "xdist", "execnet")
#: What the pool in which PyTorch's compiler loads what it has compiled calls its threads.
COMPILER_THREADS = "ThreadPoolExecutor-"

#: Registries of PyTorch whose entries stay until their handle is removed. Private names, in tests only: there is no
#: public way to ask what is hooked.
TORCH_REGISTRIES = (
    ("torch.nn.modules.module", "_global_forward_pre_hooks"),
    ("torch.nn.modules.module", "_global_forward_hooks"),
    ("torch.nn.modules.module", "_global_backward_pre_hooks"),
    ("torch.nn.modules.module", "_global_backward_hooks"),
    ("torch.nn.modules.module", "_global_module_registration_hooks"),
    ("torch.nn.modules.module", "_global_parameter_registration_hooks"),
    ("torch.nn.modules.module", "_global_buffer_registration_hooks"),
    ("torch.optim.optimizer", "_global_optimizer_pre_hooks"),
    ("torch.optim.optimizer", "_global_optimizer_post_hooks"),
)

#: Public places of PyTorch that watching may wrap: module, and the class in it, or "" for the module's functions.
TORCH_PATCHABLE = (
    ("torch.nn.functional", ""),
    ("torch.autograd", ""),
    ("torch.autograd.graph", ""),
    ("torch", "Tensor"),
    ("torch.nn", "Module"),
    ("torch.nn.init", ""),
    ("torch.nn.utils", ""),
    ("torch.nn.utils.clip_grad", ""),
    ("torch.optim", "Optimizer"),
    ("torch.amp", "GradScaler"),
    ("torch.optim.lr_scheduler", "LRScheduler"),
    ("torch.optim.lr_scheduler", "SequentialLR"),
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau"),
    ("torch.utils.data", "DataLoader"),
    ("torch.utils.data.dataloader", "_SingleProcessDataLoaderIter"),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torch.jit", ""),
    ("torch.serialization", ""),
    ("torch.profiler", "profile"),
    ("torch.autograd.profiler", "profile"),
    ("torch.autograd.profiler", "record_function"),
)


@dataclass(frozen=True)
class Snapshot:
    """What is alive, open, hooked and set at one moment; values are compared by identity where they are objects."""

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    open_files: frozenset[tuple[str, int]]
    hooks: dict[str, frozenset[int]]
    patchable: dict[str, dict[str, object]]
    finders: tuple[object, ...]
    path: tuple[str, ...]
    environment: dict[str, str]
    handlers: dict[str, object]
    collecting: tuple[object, ...]
    folder: str


def snapshot(below: Path) -> Snapshot:
    """The state now. Open files count when they lie below the folder ``below``."""
    return Snapshot(
        threads=frozenset(_threads()),
        processes=frozenset(_children()),
        open_files=frozenset((file.path, file.fd) for file in _open_files(below)),
        hooks={name: frozenset(map(id, registry.values())) for name, registry in _torch_registries()},
        patchable=dict(_torch_patchable()),
        finders=tuple(sys.meta_path) + tuple(sys.path_hooks),
        path=tuple(sys.path),
        environment=dict(os.environ),
        handlers=dict(_handlers()),
        collecting=tuple(each for each in gc.callbacks if str(getattr(each, "__module__", "")).startswith(OURS)),
        folder=os.getcwd(),
    )


def _of_the_compiler(value: object) -> bool:
    """PyTorch's compiler patches nn.Module and torch.jit at its first use, and for good."""
    disabled = hasattr(value, "_torchdynamo_disable")
    return disabled or str(getattr(value, "__module__", "")).startswith("torch._dynamo")


def differences(before: Snapshot, below: Path, patience_s: float = PATIENCE_S) -> list[str]:
    """One sentence for each thing that is there now and was not ``before``, or that was changed and not put back."""
    after = _settle(lambda: snapshot(below), before, patience_s)
    if sys.version_info >= (3, 12) and (after.open_files - before.open_files or after.threads - before.threads):
        # An exception that has left a `with` of contextlib is in a cycle with its frames, and holds what they do.
        gc.collect()
        after = _settle(lambda: snapshot(below), before, patience_s)
    return [
        *(f"thread {thread.name!r} is still running" for thread in after.threads - before.threads),
        *(f"process {pid} ({_command(pid)}) is still running" for pid in after.processes - before.processes),
        *(f"file {path} is still open" for path, _ in sorted(after.open_files - before.open_files)),
        *_hook_differences(before, after),
        *_replaced(before, after),
        *(
            f"{finder!r} is still on sys.meta_path or sys.path_hooks"
            for finder in after.finders
            if not any(finder is known for known in before.finders) and not _is_foreign(finder)
        ),
        *(f"{entry} is still on sys.path" for entry in after.path if entry not in before.path),
        *_environment_differences(before.environment, after.environment),
        *(
            f"{name} is still {after.handlers[name]!r}"
            for name, value in before.handlers.items()
            if after.handlers[name] is not value
        ),
        *(f"{each!r} is still in gc.callbacks" for each in after.collecting if each not in before.collecting),
        *([f"the working directory is still {after.folder}"] if after.folder != before.folder else []),
    ]


def _settle(take: Callable[[], Snapshot], before: Snapshot, patience_s: float) -> Snapshot:
    deadline = time.monotonic() + patience_s
    while True:
        after = take()
        ending = (after.threads - before.threads) or (after.processes - before.processes)
        if not ending or time.monotonic() > deadline:
            return after
        time.sleep(0.01)


def _threads() -> Iterator[threading.Thread]:
    for thread in threading.enumerate():
        # A thread that C++ code started and that called Python once is listed as a dummy for ever.
        dummy = isinstance(thread, threading._DummyThread)
        foreign = type(thread).__module__.startswith(FOREIGN_THREADS) or (
            "torch._inductor.async_compile" in sys.modules and thread.name.startswith(COMPILER_THREADS)
        )
        if thread.is_alive() and not dummy and not foreign:
            yield thread


def _children() -> Iterator[int]:
    for pid in _descendants(os.getpid()):
        try:
            ended = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
        if not ended and not any(name in _command(pid) for name in FOREIGN_PROCESSES):
            yield pid


def _descendants(pid: int) -> Iterator[int]:
    """Children, and theirs. Linux lists those of each thread; elsewhere all processes of the machine are examined."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
        return
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listed.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:200]
    except psutil.Error:
        return "?"


def _open_files(below: Path) -> Iterator[Any]:
    for file in psutil.Process().open_files():
        if Path(file.path).is_relative_to(below):
            yield file


def _torch_registries() -> Iterator[tuple[str, dict[int, Any]]]:
    for module, name in TORCH_REGISTRIES:
        if module in sys.modules:
            yield f"{module}.{name}", getattr(sys.modules[module], name)


def _torch_patchable() -> Iterator[tuple[str, dict[str, object]]]:
    """Copies of the tables of names, which are examined only where one of them has changed."""
    for module, name in (*TORCH_PATCHABLE, ("safetensors.torch", "")):
        if module not in sys.modules:
            continue
        owner = getattr(sys.modules[module], name, None) if name else sys.modules[module]
        if owner is not None:
            yield f"{module}.{name}", dict(vars(owner))


def _replaced(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for owner, names in before.patchable.items():
        now = after.patchable.get(owner, {})
        for name, value in names.items():
            if now.get(name) is value or not callable(value) or _of_the_compiler(now.get(name)):
                continue
            # Dunders matter for classes (Module.__call__, Optimizer.__init__), not for modules (__dict__, __spec__).
            if not (owner.endswith(".") and name.startswith("__")):
                yield f"{owner.rstrip('.')}.{name} is still replaced by {now.get(name)!r}"


def _hook_differences(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for name, entries in after.hooks.items():
        left = len(entries - before.hooks.get(name, frozenset()))
        if left:
            yield f"{left} hook{'s are' if left > 1 else ' is'} still in {name}"


def _environment_differences(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name) and not name.startswith(FOREIGN_VARIABLES):
            yield f"environment variable {name} is still {after.get(name)!r}, not {before.get(name)!r}"


def _is_foreign(finder: object) -> bool:
    module = getattr(finder, "__module__", None) or type(finder).__module__
    return module.split(".")[0].startswith(FOREIGN_FINDERS)


def _handlers() -> Iterator[tuple[str, object]]:
    for number in (signal.SIGINT, signal.SIGTERM):
        yield f"the handler of {number.name}", signal.getsignal(number)
    yield "sys.excepthook", sys.excepthook
    yield "threading.excepthook", threading.excepthook
