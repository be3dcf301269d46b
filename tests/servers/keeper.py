"""Keeps one S3 server for as long as anybody uses it: a separate process, shared by all workers of a run of tests.

    python keeper.py {radosgw,moto} FOLDER

It writes ``FOLDER/server.json`` once the server answers (or ``FOLDER/failed``), and ends the server and itself when no
process holds a lock on ``FOLDER/users`` any more. Processes lose their locks however they end.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds between looks whether anybody is left.
LOOK_S = 0.2


def main(kind: str, folder: Path) -> None:
    """Start the server, say where it is, wait for the users to go, end it."""
    access_key, secret_key = secrets.token_hex(10), secrets.token_hex(20)
    private = Path(tempfile.mkdtemp(prefix="wg-s3-"))
    stop: Callable[[], None] | None = None
    try:
        url, stop = (_radosgw if kind == "radosgw" else _moto)(private, access_key, secret_key)
        bucket = "watchglass-tests"
        _create_bucket(url, access_key, secret_key, bucket)
        found = {"kind": kind, "url": url, "access_key": access_key, "secret_key": secret_key, "bucket": bucket}
        temporary = folder / "server.json.new"
        temporary.write_text(json.dumps({**found, "pid": os.getpid()}))
        temporary.rename(folder / "server.json")
        with open(folder / "users", "rb+") as users:
            _wait_until_unused(users.fileno())
    except Exception as error:
        (folder / "failed").write_text(f"{type(error).__name__}: {error}")
        raise
    finally:
        if stop:
            stop()
        shutil.rmtree(private, ignore_errors=True)


def _radosgw(folder: Path, access_key: str, secret_key: str) -> tuple[str, Callable[[], None]]:
    from servers.ceph import Gateway

    gateway = Gateway(folder, access_key, secret_key)
    return gateway.url, gateway.stop


def _moto(folder: Path, access_key: str, secret_key: str) -> tuple[str, Callable[[], None]]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}", server.stop


def _create_bucket(url: str, access_key: str, secret_key: str, bucket: str) -> None:
    import boto3

    keys = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=bucket)
    client.close()


def _wait_until_unused(users: int) -> None:
    while True:
        try:
            fcntl.lockf(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(LOOK_S)


def _leave_the_family() -> None:
    """Detach from the parent process: the server serves many tests, so it is no leak of one of them."""
    if os.fork():
        os._exit(0)
    os.setsid()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    _leave_the_family()
    main(sys.argv[1], Path(sys.argv[2]))
