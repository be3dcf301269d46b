"""A Ray cluster for as long as a command needs it: an existing one, or a private one on this machine.

A private cluster listens on the loopback interface only and requires a token that only its processes have. It has no
dashboard, reports no usage, and leaves no process and no file behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from watchglass.config import environment
from watchglass.errors import ClusterError, importing

#: Memory for objects that a private cluster transfers: parts and answers are short texts.
_OBJECTS_BYTES = 80 << 20
#: Sockets have paths of at most 107 bytes, of which Ray takes 62.
_LONGEST_FOLDER = 44
#: Read by Ray when it is imported. Where clusters of several machines are off, Ray stays on the loopback interface.
_PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
#: For every cluster: no usage report, and no printed hint about processes without a GPU.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
#: One for all clusters of this process, since Ray reads it once.
_TOKEN = secrets.token_hex(32)


@dataclass(frozen=True)
class Patience:
    """How long a caller waits for a cluster, and how often it starts a process again."""

    #: How often a process that died is started again for the same part, or for a live run without progress.
    retries: int = 4
    connect_s: float = 10.0  #: Longest time until a cluster accepts a connection.
    check_s: float = 5.0  #: Time between checks of the node of this process, while the caller waits for an answer.
    wake_s: float = 0.5  #: Longest time between two moments at which a waiting caller handles signals.


class Cluster:
    """A cluster that this process is connected to; made by :func:`cluster`."""

    def __init__(self, ray: ModuleType, patience: Patience = Patience()) -> None:
        #: The module. Its type is Any, since the types of its functions differ between releases.
        self.ray: Any = ray
        self.patience = patience
        self._checked_s = time.monotonic()

    @property
    def cores(self) -> int:
        """Cores of the cluster as it is now, at least 1."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def check(self) -> None:
        """Checks now and then whether an answer can still arrive; for a caller that waits for one.

        Ray itself fails a task whose driver has lost its node. A task that has to start a process would wait forever.

        Raises:
            ClusterError: The cluster node of this process has died.
        """
        now_s = time.monotonic()
        if now_s < self._checked_s + self.patience.check_s:
            return
        self._checked_s = now_s
        try:
            own = self.ray.get_runtime_context().get_node_id()
            alive = any(node["NodeID"] == own and node["Alive"] for node in self.ray.nodes())
        except (self.ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise self.lost_node(in_short(error)) from None
        if not alive:
            raise self.lost_node("its raylet has died")

    def died(self, what: str, times: int, error: Exception) -> ClusterError:
        """The error for a process that died too often to be started again."""
        if isinstance(error, self.ray.exceptions.LocalRayletDiedError):
            return self.lost_node("its raylet has died")
        return ClusterError(
            f"the process that evaluated {what} died {times} times; a rule of yours may end it, or it needs more "
            f"memory than the machine has: {in_short(error)}"
        )

    def lost_node(self, why: str) -> ClusterError:
        """The error for a cluster that this process can no longer use."""
        return ClusterError(
            f"the Ray node of this process is gone: {why}; start the command again, with --engine local or on another "
            "node if it happens again"
        )


def in_short(error: Exception) -> str:
    """A message of Ray, in one line."""
    return " ".join(str(error).split())[:300]


@contextmanager
def cluster(
    address: str | None = None, *, cores: int | None = None, patience: Patience = Patience()
) -> Iterator[Cluster]:
    """Connects to a cluster, or starts a private one that ends with the context.

    Args:
        address: ``"host:port"`` or ``"auto"`` of an existing cluster; None for the variable ``RAY_ADDRESS``, and for a
            private cluster if that is not set.
        cores: Cores of a private cluster; all of this machine if None.
        patience: How long to wait for it.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: The cluster does not answer, or cannot be started.
    """
    address = address or environment.ray_address()
    ours = not address
    private = {**_PRIVATE, "RAY_AUTH_TOKEN": _TOKEN} if ours else {}
    with _as_it_was({**_QUIET, **private}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray about itself
        with importing("--engine ray needs Ray", "ray"):
            import ray
        if ray.is_initialized():
            yield Cluster(ray, patience)  # the caller is connected
            return
        folder = _folder() if ours else None
        try:
            with _hushed():  # also while it shuts down, when it prints most about workers that died
                try:
                    with _ending_in_order():
                        _connect(ray, address, folder, cores, patience)
                        yield Cluster(ray, patience)
                finally:
                    ray.shutdown()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _connect(ray: Any, address: str | None, folder: str | None, cores: int | None, patience: Patience) -> None:
    silence = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if folder is None:
            _greet(str(address), patience.connect_s)
            ray.init(address=address, **silence)
        else:
            ray.init(
                address="local", num_cpus=cores or len(os.sched_getaffinity(0)), include_dashboard=False,
                object_store_memory=_OBJECTS_BYTES, _node_ip_address="127.0.0.1", _temp_dir=folder, **silence,
            )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        what = f"the Ray cluster at {address} cannot be used" if address else "a Ray cluster cannot be started here"
        cure = "check --ray-address and RAY_ADDRESS" if address else "--engine local does without"
        raise ClusterError(f"{what}: {in_short(error)}; {cure}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has replaced it


def _greet(address: str, connect_s: float) -> None:
    """Connects once, and raises if no process listens: Ray itself would try for minutes, and print that it does."""
    place = address.rpartition("//")[2]
    host, _, port = place.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=connect_s).close()


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Turns SIGTERM into an exception unless it has a handler, so that no process and no folder is left behind."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    arrived: list[int] = []

    def terminate(number: int, _: object) -> None:
        arrived.append(number)
        raise KeyboardInterrupt  # the only exception that Ray's wait passes on unchanged

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        if arrived:
            raise SystemExit(128 + arrived[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _hushed() -> Iterator[None]:
    """Keeps a thread of Ray from printing to stdout, among our verdicts, that a process died and is started again.

    Ray has no option for that. With a release of Ray that prints in another way, this does nothing.
    """
    module = sys.modules.get("ray._private.worker")
    name = "print_to_stdstream"
    printer = getattr(module, name, None)
    if module is None or printer is None:
        yield
        return
    setattr(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(module, name, printer)


def _folder() -> str:
    """A folder for logs and sockets of a private cluster, which only this user can read."""
    parent = tempfile.gettempdir()
    name = tempfile.mkdtemp(prefix="watchglass-ray-", dir=parent if len(parent) < _LONGEST_FOLDER - 24 else "/tmp")
    return str(Path(name).resolve())


@contextmanager
def _as_it_was(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables that are not set, and restores what Ray changes in this process."""
    environ, hooks = dict(os.environ), (sys.excepthook, threading.excepthook)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.update({name: value for name, value in variables.items() if name not in environ})
    try:
        yield
    finally:
        for name in os.environ.keys() - environ.keys():
            del os.environ[name]
        os.environ.update(environ)
        sys.excepthook, threading.excepthook = hooks
        if main:
            signal.signal(signal.SIGTERM, handler)
