"""What tests of object stores stand on: a server that lives while somebody uses it, a proxy that does as it says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from servers import ceph
from servers.fixtures import VARIABLE, S3Server, _given, _join, _kind
from servers.proxy import Proxy
from waiting import PATIENCE_S

JOIN = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from servers.fixtures import _join
print(_join(Path({folder!r}), "moto")[1].url, flush=True)
sys.stdin.read()
"""


def test_a_server_is_shared_and_ends_with_its_last_user(tmp_path: Path) -> None:
    """Even if that is killed; it is detached, so it is no leak of a test."""
    users, server = _join(tmp_path / "s3", "moto")
    pid = int((tmp_path / "s3" / "server.json").read_text().partition('"pid": ')[2].rstrip("}"))
    keeper = psutil.Process(pid)
    assert keeper not in psutil.Process().children(recursive=True)
    program = JOIN.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path / "s3"))
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline().strip() == server.url
    os.close(users)
    time.sleep(0.6)
    assert keeper.is_running()
    other.kill()
    other.communicate()
    keeper.wait(PATIENCE_S)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ceph.PROGRAMS:
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
        program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    with pytest.raises(RuntimeError, match=r"radosgw did not start: .*monmaptool.* failed with 3: out of order"):
        _join(tmp_path / "s3", "radosgw", environ)


def test_servers_are_chosen() -> None:
    assert _kind("moto") == "moto"
    assert _kind("", lambda: False) == "moto"
    assert _kind("", lambda: True) == "radosgw"
    with pytest.raises(pytest.UsageError, match=f"{VARIABLE} must be radosgw, moto or the address"):
        _kind("minio")
    assert _given("http://key:secret@host:9000/bucket") == S3Server(
        "given", "http://host:9000", "key", "secret", "bucket"
    )


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_proxy_does_as_requested(s3_location: str, s3_proxy: Proxy) -> None:
    url = f"{s3_proxy.url}/nothing-there"
    known = status(url)
    assert known in (403, 404)
    s3_proxy.delay(0.2)
    start = time.monotonic()
    assert status(url) == known
    assert time.monotonic() - start >= 0.2
    s3_proxy.restore()
    s3_proxy.refuse(503, "SlowDown", count=1, method="PUT")
    assert status(url) == known
    s3_proxy.refuse(507, "Full")
    assert status(url) == 507
    s3_proxy.lose_answers(1, "GET")
    assert status(url) == 507
    s3_proxy.restore()
    s3_proxy.lose_answers(1, "GET")
    with pytest.raises(OSError, match=r"closed connection|reset"):
        status(url)
    assert status(url) == known
    s3_proxy.cut()
    with pytest.raises(OSError, match="refused"):
        status(url)
    s3_proxy.restore()
    assert status(url) == known
    assert [request.method for request in s3_proxy.requests] == ["GET"] * 8
