"""A job: the description of one launch, checked before anything is created."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path

from watchglass.config import (
    DEFAULT_RUNS,
    EvaluatorConfig,
    ExporterConfig,
    SamplerConfig,
    SessionConfig,
    near_file,
    scheme_of,
)
from watchglass.errors import LaunchError, MissingFileError
from watchglass.launch.interpreter import python_command


@dataclass(frozen=True)
class Job:
    """The description of a launch, which makes one run."""

    target: str  #: Path of the script, or with ``is_module`` a dotted module name.
    arguments: tuple[str, ...] = ()  #: The arguments of the script, ``sys.argv[1:]``.
    is_module: bool = False  #: Run ``target`` as ``python -m`` does.
    #: Location of the run; None for a new ``<name of the script>-<date>-<time>`` below ``runs``.
    run: str | None = None
    runs: str = DEFAULT_RUNS  #: Folder, or prefix of an object store, for runs without a location.
    #: The configuration of the evaluator, except the run; None for no evaluator. Stops that another evaluator requests
    #: through the store are obeyed all the same.
    evaluator: EvaluatorConfig | None = None
    #: What the training process captures; its run and attempt are set at the launch.
    capture: SessionConfig = field(default_factory=lambda: SessionConfig(run=""))

    def __post_init__(self) -> None:
        for location in (self.run, self.runs):
            if location is not None:
                scheme_of(location)  # raises for an invalid location

    @property
    def command(self) -> list[str]:
        """The command line of the script: this interpreter with its flags, then the script and its arguments."""
        return [*python_command(), *self.words]

    @property
    def words(self) -> list[str]:
        """Script or ``-m module``, and the arguments."""
        return [*(("-m",) if self.is_module else ()), self.target, *self.arguments]

    @property
    def stem(self) -> str:
        """Short name for people and run directories: ``train`` for ``src/train.py`` and for ``pkg.train``."""
        if self.is_module:
            return self.target.rpartition(".")[2] or "run"
        path = Path(self.target)
        return path.stem or path.resolve().name or "run"

    def check(self) -> None:
        """Refuse a job that cannot be started, before its run is created.

        Raises:
            MissingFileError: The script does not exist.
            LaunchError: Python cannot run the script, or finds no such module.
        """
        if self.is_module:
            _check_module(self.target)
        else:
            _check_script(self.target)

    def session(self, run: str, attempt: int) -> SessionConfig:
        """The configuration of the training process."""
        return replace(self.capture, run=run, attempt=attempt)

    def sampler(self, run: str, attempt: int) -> SamplerConfig | None:
        """The configuration of the sampler that this launcher starts; None for none."""
        if self.capture.profiler.enabled is False:
            return None
        return SamplerConfig.here(run, attempt, self.capture.profiler.sample_interval_s, of_script=False)

    def exporter(self, run: str) -> ExporterConfig | None:
        """The configuration of the process that writes for TensorBoard; None for none."""
        return None if self.capture.tensorboard is None else ExporterConfig(run, self.capture.tensorboard)


def _check_script(target: str) -> None:
    path = Path(target)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise LaunchError(f"{target or path.cwd()} is a folder without a __main__.py; name the script to run")
        return
    if not path.exists():
        raise MissingFileError(f"script {target} does not exist in {Path.cwd()}{near_file(path)}")
    if not os.access(path, os.R_OK):
        raise LaunchError(f"script {target} cannot be read; check its permissions")


def _check_module(target: str) -> None:
    """Look for the topmost package only: a further search would import the package into this process."""
    top = target.partition(".")[0]
    if not top.isidentifier():
        raise LaunchError(f"-m needs the dotted name of a module but got {target!r}; for a script omit -m")
    if not _is_found(top):
        raise LaunchError(
            f"no module named {top!r} was found from {os.getcwd()}; check the name, or install the package"
        )


def _is_found(name: str) -> bool:
    """Whether a finder of this process has a module; editable installs add finders."""
    for finder in sys.meta_path:
        # As with python -m, the working directory comes first; our own sys.path[0] belongs to the watchglass command.
        path = [os.getcwd(), *sys.path] if finder is PathFinder else None
        find = getattr(finder, "find_spec", None)
        if find is not None and find(name, path) is not None:
            return True
    return False
