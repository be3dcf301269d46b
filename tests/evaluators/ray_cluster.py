"""A Ray cluster of two nodes for tests: a process that holds it until its standard input is closed.

Two raylets with a core each, beside a head without any, on the loopback interface, as three machines would be: what
works on one survives the other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import psutil

#: No other user may use the cluster, and it may reach no other host.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64, "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}  # fmt: skip


@contextmanager
def two_nodes(environ: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """The environment of a process that is to use the cluster by ``RAY_ADDRESS``."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets have short paths
    os.mkdir(f"{folder}/ray")
    environment = {**os.environ, **ENVIRONMENT, "RAY_TMPDIR": folder, **(environ or {})}
    holder = subprocess.Popen(
        [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        line = holder.stdout.readline()
        yield {**environment, "RAY_ADDRESS": json.loads(line)["address"]}
    finally:
        holder.communicate("")
        _end_left_behind(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _end_left_behind(folder: str) -> None:
    """Ends what outlives a node that was killed: its agents, which are known by their logs in the cluster's folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(file.path.startswith(f"{folder}/") for file in process.open_files()):
                process.kill()


def hold() -> None:
    """Starts the cluster, says where it is, and ends it when standard input is closed."""
    from ray.cluster_utils import Cluster

    memory = 80 << 20
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0, "object_store_memory": memory, "include_dashboard": False,
            "node_ip_address": "127.0.0.1",
        },
    )  # fmt: skip
    for number in (2, 3):  # another address, so that no driver takes one of them for the node that it runs on
        cluster.add_node(num_cpus=1, object_store_memory=memory, node_ip_address=f"127.0.0.{number}")
    cluster.wait_for_nodes(60)
    print(json.dumps({"address": cluster.address}), flush=True)
    sys.stdin.read()
    for node in cluster.list_all_nodes():  # also what is left of one that a test has killed
        node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


if __name__ == "__main__":
    hold()
