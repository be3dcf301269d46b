"""The settings of what is written for TensorBoard while a run goes on, and the configuration of that process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from watchglass.config.locations import local_path, scheme_of
from watchglass.config.parameters import ParameterError, parameter, validate
from watchglass.config.process_config import ProcessConfig


@dataclass(frozen=True)
class TensorBoardConfig:
    """The settings of the event files of TensorBoard that a separate process writes during a run.

    Attributes:
        folder: The folder that TensorBoard is started with. The run gets a folder of its name in it.
        histograms: Whether to write histograms.
        interval_s: Seconds between two writes.

    Raises:
        InvalidValueError: A setting outside its limits, an address of an object store, or TensorBoard is not installed.
    """

    folder: str = parameter("")
    histograms: bool = parameter(True)
    interval_s: float = parameter(5.0, ge=1, le=3600)

    def __post_init__(self) -> None:
        validate(self)
        if not self.folder or scheme_of(self.folder):
            raise ParameterError("TensorBoardConfig", "folder", f"must be a folder but got {self.folder!r:.200}")
        object.__setattr__(self, "folder", os.path.abspath(local_path(self.folder)))
        found = find_spec("tensorboard")
        if found is None or found.origin is None:  # a folder of this name is no package
            need = "tensorboard is not installed: pip install 'watchglass[tensorboard]'"
            raise ParameterError("TensorBoardConfig", "folder", f"must be omitted, because {need}")

    @classmethod
    def read(cls, given: Any) -> Any:
        """What a file or a script gives as settings, where it is only the folder; else ``given`` itself."""
        return {"folder": os.fspath(given)} if isinstance(given, (str, os.PathLike)) else given


@dataclass(frozen=True)
class ExporterConfig(ProcessConfig):
    """The configuration of the process that writes event files of TensorBoard."""

    title: ClassVar[str] = "the export to TensorBoard"
    module: ClassVar[str] = "watchglass.trackers"
    gives: ClassVar[str] = "data for TensorBoard"

    settings: TensorBoardConfig  #: Where, and what.
    replaces: str = parameter("")  #: How the process before this one ended; "" for the first one.

    @property
    def unfinished(self) -> str:
        """Said if it did not end in time."""
        later = f"watchglass export {self.run} --to tensorboard -o {self.settings.folder}"
        return f"{self.title} was ended before it had written everything; to write the rest: {later}"

    @property
    def termination_s(self) -> float:
        """Seconds that the process has to end after a signal."""
        return 5.0
