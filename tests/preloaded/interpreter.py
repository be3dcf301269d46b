"""Servers that have imported what most tests import, and executables that stand in for ``python``."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from watchglass import rules

_HERE = Path(__file__).parent

_RULES = Path(rules.__file__).parent

#: Modules that scripts import: PyTorch, with what it imports itself when a script begins to train, and what a recorder
#: does.
FOR_SCRIPTS = ("torch", "torch.optim", "torch.utils.data", "torch._dynamo", "numpy.random", "pyarrow.ipc")
#: Modules that ``sitecustomize`` of watchglass imports into a process that has PyTorch.
FOR_WATCHED = ("watchglass.session", "watchglass.capture.pytorch.adapter")
#: Modules that the commands of watchglass import, those of typer and the rules included.
FOR_COMMANDS = (
    "watchglass.cli.app", "watchglass.cli.run", "watchglass.cli.check", "watchglass.cli.verdicts", "watchglass.launch",
    "watchglass.evaluate.live.process", "watchglass.diagnose.judgement", "watchglass.run.run", "pyarrow.ipc",
    "rich.console", "numpy.random", "numpy.ma", "importlib.metadata",
    # What some versions of typer import when a command is called.
    *(("pydantic.type_adapter",) if find_spec("pydantic") else ()),
    *(("typer._adapters",) if find_spec("typer._adapters") else ()),
    *(f"watchglass.rules.{path.parent.name}.{path.stem}" for path in sorted(_RULES.glob("*/[a-z]*.py"))),
)  # fmt: skip


class Preloaded:
    """A stand-in for ``python`` whose processes are forked from one that has imported everything already.

    What it runs sees a fresh interpreter: its own arguments, environment, working directory, files, signals and exit
    status. Scripts, watched scripts and ``python -m watchglass`` have servers of their own, so that scripts do not find
    watchglass imported unless they are watched from their start.

    Args:
        folder: Where the executables and the sockets of the servers lie. Short: a socket's name has 100 characters.

    Attributes:
        python: The executable.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[tuple[tuple[str, ...], ...], tuple[subprocess.Popen[str], list[str]]] = {}
        self.python = self.importing()

    def importing(self, *modules: str) -> Path:
        """The executable whose scripts have more modules imported; takes as long as importing them, once."""
        executable = self._folder / "-".join(("python", *modules))
        if not executable.exists():
            (commands,) = self._serve(FOR_COMMANDS)
            scripts, watched = self._serve(FOR_SCRIPTS + modules, FOR_WATCHED)
            servers = {"watchglass": commands, "": scripts, "watched": watched}
            settings = {"python": sys.executable, "servers": servers}
            (self._folder / f"{executable.name}.json").write_text(json.dumps(settings))
            executable.write_text(f"#!{sys.executable} -IS\n{(_HERE / 'client.py').read_text()}")
            executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
        return executable

    def _serve(self, *groups: tuple[str, ...]) -> list[str]:
        """The sockets of servers: the first has imported the first group of modules, each other one the next, too."""
        if groups not in self._servers:
            addresses = [str(self._folder / f"{len(self._servers)}.{number}") for number in range(len(groups))]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            environment.pop("PYTHONPATH", None)
            jobs = json.dumps(list(zip(addresses, groups, strict=True)))
            server = subprocess.Popen(
                [sys.executable, str(_HERE / "server.py"), jobs],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True,
            )  # fmt: skip
            self._servers[groups] = server, addresses
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n", f"the server ended while it imported {groups}"
        return self._servers[groups][1]

    def close(self) -> None:
        """Ends the servers, and with them what they still run."""
        for server, _ in self._servers.values():
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.close()
            server.wait(30)
            server.stdout.close()
