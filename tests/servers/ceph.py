"""Ceph's RADOS Gateway, an S3 server that enforces what S3 does, as plain processes with all data in memory.

One monitor, one storage daemon and the gateway, on free ports of the loopback interface, with a configuration, keys and
folders of their own. Debian and Ubuntu have it in ``ceph-mon ceph-osd radosgw ceph-common``.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool", "radosgw", "radosgw-admin")
#: Seconds that one command, or the gateway's first answer, may take.
PATIENCE_S = 90.0

_CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon_port}]
mon initial members = a
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 2
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail crit = 1
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 8589934592
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run dir = {folder}
admin socket =
log file = {folder}/$name.log
keyring = {folder}/admin.keyring
ms bind ipv6 = false
[mon]
keyring = {folder}/mon.keyring
[osd.0]
keyring = {folder}/osd/keyring
[client.gateway]
keyring = {folder}/gateway.keyring
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw data = {folder}/gateway
rgw thread pool size = 64
rgw override bucket index max shards = 1
rgw dynamic resharding = false
rgw run sync thread = false
rgw enable quota threads = false
rgw gc obj min wait = 5
rgw gc processor period = 5
"""


def installed() -> bool:
    """Whether all of Ceph's programs that this needs are there."""
    return all(shutil.which(name) for name in PROGRAMS)


def free_port() -> int:
    """A TCP port of the loopback interface without a listener a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Gateway:
    """The three daemons; the caller must call :meth:`stop`.

    Args:
        folder: Empty, private and with a short path; everything that is on a disk lies in it.
        access_key: Of the one user that it knows, who may do everything.
        secret_key: Of the same user.
    """

    def __init__(self, folder: Path, access_key: str, secret_key: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.daemons: list[subprocess.Popen[bytes]] = []
        self._environment = {**os.environ, "CEPH_CONF": str(folder / "ceph.conf")}
        try:
            self._start(access_key, secret_key)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Kill the daemons: their state is in memory and is not needed."""
        for daemon in reversed(self.daemons):
            daemon.kill()
        for daemon in self.daemons:
            daemon.wait()

    def _start(self, access_key: str, secret_key: str) -> None:
        fsid = str(uuid.uuid4())
        mon_port = free_port()
        for name in ("mon", "osd", "gateway"):
            (self.folder / name).mkdir()
        text = _CONFIGURATION.format(fsid=fsid, mon_port=mon_port, folder=self.folder, port=self.port)
        (self.folder / "ceph.conf").write_text(text)
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{mon_port}]", "monmap")
        everything = [word for daemon in ("mon", "osd", "mgr") for word in ("--cap", daemon, "allow *")]
        self._run("ceph-authtool", "-C", "mon.keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        self._run("ceph-authtool", "-C", "admin.keyring", "--gen-key", "-n", "client.admin", *everything)
        self._run("ceph-authtool", "mon.keyring", "--import-keyring", "admin.keyring")
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", "monmap", "--keyring", "mon.keyring")
        self._daemon("ceph-mon", "-i", "a", "-f")

        osd, key = str(uuid.uuid4()), self._run("ceph-authtool", "--gen-print-key").strip()
        self._run("ceph", "osd", "new", osd, "-i", "-", input_=json.dumps({"cephx_secret": key}))
        self._run("ceph-authtool", "-C", "osd/keyring", "-n", "osd.0", "--add-key", key)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._daemon("ceph-osd", "-i", "0", "-f")
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=here", "root=default")

        may = ["mon", "allow rw", "osd", "allow rwx", "mgr", "allow rw"]
        self._run("ceph", "auth", "get-or-create", "client.gateway", *may, "-o", "gateway.keyring")
        self._daemon("radosgw", "-n", "client.gateway", "-f")
        self._wait_for_an_answer()
        user = ["--uid=tests", "--display-name=tests", f"--access-key={access_key}", f"--secret-key={secret_key}"]
        self._run("radosgw-admin", "user", "create", *user)

    def _run(self, *command: str, input_: str | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            input=input_,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command[:3])} failed with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def _daemon(self, *command: str) -> None:
        with open(self.folder / f"{command[0]}.out", "wb") as output:
            daemon = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,
            )
        self.daemons.append(daemon)

    def _wait_for_an_answer(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise RuntimeError(f"{daemon.args} ended with {daemon.returncode}")
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                return
            except urllib.error.HTTPError as error:
                error.close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def die_with_parent() -> None:
    """In a child, before it becomes another program: be killed when the parent is gone, however that ended."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
