"""Fixtures for tests against an S3 server: Ceph's radosgw where it is installed, else moto's.

``WATCHGLASS_TEST_S3`` chooses one: ``radosgw``, ``moto``, or the address of a server that runs already,
``http://ACCESS_KEY:SECRET_KEY@host:port/bucket``.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from obstore.store import S3Store

from servers import ceph
from servers.proxy import Proxy

VARIABLE = "WATCHGLASS_TEST_S3"
#: Seconds that a server may take to start, with other tests running beside it.
PATIENCE_S = 120.0


@dataclass(frozen=True)
class S3Server:
    """An S3 server that runs.

    Attributes:
        kind: "radosgw", "moto", or "given".
        url: Its address, ``http://host:port``.
        access_key: Of the user who may do everything.
        secret_key: Of the same user.
        bucket: A bucket that is there; tests share it, each below a prefix of its own.
    """

    kind: str
    url: str
    access_key: str
    secret_key: str = field(repr=False)
    bucket: str

    def environment(self, url: str = "") -> dict[str, str]:
        """The variables with which a process reaches the server, directly or through a proxy at ``url``."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_CONFIG_FILE": os.devnull,
        }

    def client(self) -> S3Store:
        """A client of the bucket that watchglass does not know, past any proxy."""
        return S3Store(
            self.bucket,
            endpoint=self.url,
            region="us-east-1",
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            client_options={"allow_http": True},
        )


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The one S3 server of this run of the tests; the first test that asks for it waits until it has started."""
    chosen = os.environ.get(VARIABLE, "")
    if "://" in chosen:
        yield _given(chosen)
        return
    with _shared_server(_folder(tmp_path_factory), chosen) as server:
        yield server


@pytest.fixture
def s3_location(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty ``s3://bucket/prefix`` of the test's own, with the environment set so that it can be used."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    prefix = f"t-{uuid.uuid4().hex[:12]}"
    yield f"s3://{s3_server.bucket}/{prefix}"
    _remove(s3_server, prefix)


@pytest.fixture
def s3_proxy(s3_server: S3Server, s3_location: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What the test's :func:`s3_location` is reached through, to be cut, slowed down or made to refuse; it counts."""
    proxy = Proxy(s3_server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    yield proxy
    proxy.close()


def pytest_report_header() -> str:
    """Which S3 server the tests will use."""
    return f"S3 server of the tests: {_description()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which S3 server was used, and why not the better one."""
    base = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    for kind in ("radosgw", "moto"):
        if (base / f"s3-{kind}" / "server.json").exists():
            terminalreporter.write_line(f"S3 server of the tests: {kind}")
        if (base / f"s3-{kind}" / "failed").exists():
            why = (base / f"s3-{kind}" / "failed").read_text()[:500]
            terminalreporter.write_line(f"S3 server of the tests: {kind} FAILED to start: {why}", red=True)


def _description() -> str:
    chosen = os.environ.get(VARIABLE, "")
    if "://" in chosen:
        return f"{_given(chosen).url}, as {VARIABLE} says"
    kind = _kind(chosen)
    if kind == "radosgw":
        found = subprocess.run(["radosgw", "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"version (\S+)", found)
        return f"Ceph's radosgw {version[1] if version else ''}"
    why = f"as {VARIABLE} says" if chosen else "since Ceph's ceph-mon, ceph-osd and radosgw are not installed"
    return f"moto {importlib.metadata.version('moto')}, {why}"


def _kind(chosen: str, has_ceph: Callable[[], bool] = ceph.installed) -> str:
    if chosen not in ("", "radosgw", "moto"):
        raise pytest.UsageError(f"{VARIABLE} must be radosgw, moto or the address of a server but got {chosen!r}")
    return chosen or ("radosgw" if has_ceph() else "moto")


def _given(address: str) -> S3Server:
    parts = urlsplit(address)
    bucket = parts.path.strip("/")
    if not (parts.username and parts.password and bucket):
        raise pytest.UsageError(f"{VARIABLE} must look like http://ACCESS_KEY:SECRET_KEY@host:port/bucket")
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return S3Server("given", url, parts.username, parts.password, bucket)


def _folder(factory: pytest.TempPathFactory) -> Path:
    """What all workers of this run of the tests share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def _shared_server(folder: Path, chosen: str) -> Iterator[S3Server]:
    kind = _kind(chosen)
    try:
        users, server = _join(folder / f"s3-{kind}", kind)
    except RuntimeError:
        if kind == "moto" or chosen:
            raise
        users, server = _join(folder / "s3-moto", "moto")
    try:
        yield server
    finally:
        os.close(users)


def _join(folder: Path, kind: str, environ: Mapping[str, str] = os.environ) -> tuple[int, S3Server]:
    """Become a user of the server, and start it if it does not run; its keeper ends it after the last user."""
    folder.mkdir(exist_ok=True)
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Of the process and not of the descriptor: children that a test forks hold nothing.
        fcntl.lockf(users, fcntl.LOCK_SH)
        with open(folder / "starting", "w") as starting:
            fcntl.lockf(starting, fcntl.LOCK_EX)
            if not (folder / "server.json").exists() and not (folder / "failed").exists():
                _start(folder, kind, environ)
        if (folder / "failed").exists():
            raise RuntimeError(f"{kind} did not start: {(folder / 'failed').read_text()}")
        found = json.loads((folder / "server.json").read_text())
        found.pop("pid")
        return users, S3Server(**found)
    except BaseException:
        os.close(users)
        raise


def _start(folder: Path, kind: str, environ: Mapping[str, str]) -> None:
    keeper = Path(__file__).with_name("keeper.py")
    with open(folder / "keeper.log", "wb") as log:
        started = subprocess.run(
            [sys.executable, str(keeper), kind, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            check=False,
        )
    deadline = time.monotonic() + PATIENCE_S
    while not started.returncode and time.monotonic() < deadline:
        if (folder / "server.json").exists() or (folder / "failed").exists():
            return
        time.sleep(0.05)
    (folder / "failed").write_text(f"no answer within {PATIENCE_S:g} s: {(folder / 'keeper.log').read_text()[-300:]}")


def _remove(server: S3Server, prefix: str) -> None:
    """Remove what a test wrote: all of it is in memory."""
    bucket = server.client()
    for found in bucket.list(prefix, chunk_size=1000):
        bucket.delete([entry["path"] for entry in found])
