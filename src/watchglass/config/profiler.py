"""The settings of the profiler: what is measured of the machine, of steps, modules, operators and Python functions."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from watchglass.config.parameters import ParameterError, parameter, validate
from watchglass.config.profile_windows import ProfiledRange, first_overlap, profile_windows
from watchglass.errors import InvalidValueError
from watchglass.records import PYTHON_PROFILERS


@dataclass(frozen=True)
class ProfilerConfig:
    """The settings of the profiler.

    A window is ``"100:105"``, the training steps from the first number up to, without, the second one, or
    ``"60s:65s"``, the steps that begin in these seconds after the first update.

    Attributes:
        enabled: Whether a separate process samples system metrics, and the phases of steps are recorded. None means
            yes under ``watchglass run``, and no for ``watch`` alone. Modules and windows do not depend on it.
        sample_interval_s: Seconds between two samples of system metrics.
        module_times: Whether the time of each module is recorded, in some training steps that are not captured.
        profile_steps: Windows in which PyTorch's profiler records operators.
        keep_traces: Whether the trace of each of these windows is kept in the run, up to 64 MiB for each worker.
        python_profile: Windows in which Python functions are profiled.
        python_profiler: What profiles them: ``"cprofile"`` counts every call, ``"pyinstrument"`` looks at the stack
            every millisecond.

    Raises:
        InvalidValueError: A setting outside its limits, windows that overlap, those of operators and functions
            included, or a profiler that is not installed.
    """

    enabled: bool | None = parameter(None)
    sample_interval_s: float = parameter(0.5, ge=0.1, le=60)
    module_times: bool = parameter(False)
    profile_steps: tuple[str, ...] = parameter(())
    keep_traces: bool = parameter(False)
    python_profile: tuple[str, ...] = parameter(())
    python_profiler: str = parameter("cprofile", choices=PYTHON_PROFILERS)

    def __post_init__(self) -> None:
        validate(self)
        for name, windows in (("profile_steps", "operator_windows"), ("python_profile", "python_windows")):
            try:
                getattr(self, windows)
            except InvalidValueError as error:
                raise ParameterError("ProfilerConfig", name, str(error)) from None
        overlap = first_overlap(self.operator_windows, self.python_windows)
        if overlap is not None:
            operators, functions = overlap
            end = ProfiledRange(operators.stop, operators.stop + functions.stop - functions.start, operators.timed)
            raise ParameterError(
                "ProfilerConfig", "python_profile",
                "must not overlap the windows of operators, because each profiler would time the other, but got "
                f"{functions}, and {operators} for operators; use {end}", ("python_profile", "profile_steps"),
            )  # fmt: skip
        if self.python_profiler == "pyinstrument" and self.python_profile and find_spec("pyinstrument") is None:
            need = "pyinstrument is not installed: pip install 'watchglass[pyinstrument]'"
            raise ParameterError("ProfilerConfig", "python_profiler", f"must be cprofile, because {need}")

    @classmethod
    def read(cls, given: Any) -> Any:
        """What a file or a script gives, where it is only whether to profile; else ``given`` itself."""
        return cls(enabled=given) if given is None or isinstance(given, bool) else given

    @property
    def operator_windows(self) -> tuple[ProfiledRange, ...]:
        """The windows of ``profile_steps``."""
        return profile_windows(self.profile_steps, adjoin=False)

    @property
    def python_windows(self) -> tuple[ProfiledRange, ...]:
        """The windows of ``python_profile``."""
        return profile_windows(self.python_profile)
