"""Servers that have imported what most tests import, and an executable that stands in for ``python``."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent

#: Modules that scripts import: PyTorch, with what it imports itself when a script begins to train.
FOR_SCRIPTS = ("torch", "torch.optim", "torch.utils.data", "torch._dynamo", "numpy")
#: Modules that the commands of watchglass import.
FOR_COMMANDS = ("watchglass.cli.app", "watchglass.evaluate.live", "pyarrow.ipc", "rich.console")


class Preloaded:
    """A stand-in for ``python`` whose processes are forked from one that has imported everything already.

    What it runs sees a fresh interpreter: its own arguments, environment, working directory, files, signals and exit
    status. Two servers, one for scripts and one for ``python -m watchglass``, start when they are first needed, so that
    scripts do not find watchglass imported.

    Args:
        folder: Where the executable and the sockets of the servers lie. Short, for sockets allow some 100 characters.

    Attributes:
        python: The executable.
    """

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python"
        self._servers: list[subprocess.Popen[str]] = []
        servers = {
            "watchglass": self._serve(folder / "commands", FOR_COMMANDS),
            "": self._serve(folder / "scripts", FOR_SCRIPTS),
        }
        for server in self._servers:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n", "the server ended while it imported"
        (folder / "servers.json").write_text(json.dumps({"python": sys.executable, "servers": servers}))
        self.python.write_text(f"#!{sys.executable} -IS\n{(_HERE / 'client.py').read_text()}")
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)

    def _serve(self, address: Path, modules: tuple[str, ...]) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        self._servers.append(
            subprocess.Popen(
                [sys.executable, str(_HERE / "server.py"), str(address), *modules],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True,
            )
        )  # fmt: skip
        return str(address)

    def close(self) -> None:
        """Ends the servers, and with them what they still run."""
        for server in self._servers:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.close()
            server.wait(30)
            server.stdout.close()
