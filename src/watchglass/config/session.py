"""The configuration of a training process. A launcher validates it and passes it on in the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from watchglass.config import environment
from watchglass.config.collection import DEFAULT_COLLECTIONS, Collection, check_patterns
from watchglass.config.facts import FACTS
from watchglass.config.locations import absolute
from watchglass.config.parameters import ParameterError, check_names, describe, parameter, validate, values
from watchglass.config.profiler import ProfilerConfig
from watchglass.config.saving import MODE_NAMES, STEP_SETTINGS, SaveSettings, Schedule
from watchglass.config.sources import SettingsLayer, combine, read_collections, with_source
from watchglass.config.tensorboard import TensorBoardConfig

MEBIBYTE = 1 << 20


#: The settings of a profiler of which nothing is said.
_PROFILER = ProfilerConfig()


@dataclass(frozen=True)
class SessionConfig(SaveSettings):
    """The configuration of capture in one training run.

    Settings of :class:`Collection` that are given here apply to every collection without its own value.

    Attributes:
        run: Location of the run: a folder, or an address like ``s3://bucket/path``.
        attempt: Number of the attempt; None lets the session begin one.
        collections: What is recorded. A list (of collections, names or tables) means exactly these. A table by name
            changes the default, ``{"inputs": True, "updates": False, "gradients": {"save_raw": True}}``.
        save_all: Record every tensor the run produces, as collection ``all`` does.
        include_regex: Also record tensors whose names match one of these, as collection ``default`` does.
        save_interval: Interval of every collection without an interval; None lets the budget choose.
        include_workers: ``"all"``, or ``"one"``: only rank 0 records tensors, the others only the values of every step.
        facts: Kinds of facts to record; None for the default ones.
        overhead_budget: Largest share of the run's time that capture may take, as a ratio.
        capture_memory_bytes: Limit of the memory for copies of weights, from which updates are computed, and for a
            re-run. It excludes the small working memory of statistics on a device, and records not yet written.
        flush_interval_s: Seconds between writes; None for 0.5 s on a local folder, and on an object store 5 s
            or more (see :func:`watchglass.store.StorePolicy.intervals`).
        queue_bytes: Limit of the records waiting to be written; further records are dropped and counted.
        spool_bytes: Limit of the records on the local disk for an object store that is unreachable or slow; 0 for none.
        raw_keep_bytes: Raw tensors to keep per worker; older files are removed. None keeps all.
        flight_recorder: Keep the last steps in files that survive ``kill -9``, about 8 MiB per worker.
        planned_steps: Planned number of TRAIN steps, if known.
        profiler: The settings of the profiler; True, False or None for its ``enabled`` alone.
        tensorboard: Write event files of TensorBoard during the run: their settings, or the folder alone. None for
            none.
        strict: Faults inside capture raise instead of detaching. For tests.
        overrides: Settings of the command line, which override those of the script.
    """

    run: str
    attempt: int | None = None
    collections: tuple[Collection, ...] = DEFAULT_COLLECTIONS
    save_all: bool = parameter(False)
    include_regex: tuple[str, ...] = parameter((), split=False)
    include_workers: str = parameter("all", choices=("all", "one"))
    facts: tuple[str, ...] | None = parameter(None, choices=tuple(FACTS))
    overhead_budget: float = parameter(0.01, gt=0, le=1)
    capture_memory_bytes: int = parameter(256 * MEBIBYTE, ge=0)
    flush_interval_s: float | None = parameter(None, gt=0)
    queue_bytes: int = parameter(64 * MEBIBYTE, ge=1)
    spool_bytes: int = parameter(1024 * MEBIBYTE, ge=0)
    raw_keep_bytes: int | None = parameter(None, ge=1)
    flight_recorder: bool = parameter(True)
    planned_steps: int | None = parameter(None, ge=1)
    profiler: ProfilerConfig = parameter(_PROFILER)  # noqa: RUF009  a field
    tensorboard: TensorBoardConfig | None = parameter(None)  # noqa: RUF009  a field
    strict: bool = parameter(False)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def records_phases(self) -> bool:
        """Whether the phases of steps are recorded: the profiler is on, which it is by default under a launcher."""
        return self.profiler.enabled if self.profiler.enabled is not None else self.attempt is not None

    def __post_init__(self) -> None:
        object.__setattr__(self, "profiler", ProfilerConfig.read(self.profiler))
        object.__setattr__(self, "tensorboard", TensorBoardConfig.read(self.tensorboard))
        validate(self)
        check_patterns(self.include_regex, "SessionConfig")
        self.check_modes("SessionConfig")
        object.__setattr__(self, "collections", read_collections(self.collections, DEFAULT_COLLECTIONS))
        for collection in self.collections:
            for mode in MODE_NAMES:
                merged = self._merged(collection, mode)
                if merged is not None and merged.empty and merged.end != 0:
                    own, modes = f"collections.{collection.name}.", f"modes.{mode}."
                    raise ParameterError(
                        "SessionConfig",
                        f"collections.{collection.name}",
                        f"keeps no step in mode {mode}: together with the settings of the whole run, start_step "
                        f"is {merged.start}, end_step {merged.end} and save_interval "
                        f"{merged.interval or 'left to the budget'}; to keep nothing use end_step = 0",
                        related=[place + name for place in ("", modes, own, own + modes) for name in STEP_SETTINGS],
                    )

    @classmethod
    def merged(cls, run: str, *layers: SettingsLayer, overrides: Mapping[str, Any] | None = None) -> SessionConfig:
        """The configuration by the settings of several sources; a later source overrides an earlier one.

        Args:
            run: Location of the run.
            *layers: The settings of each source.
            overrides: Settings that also override those of the script, see above.

        Raises:
            InvalidValueError: A setting that is unknown, invalid, or contradicts another; the message names its source.
        """
        try:
            return cls(run, **combine(*layers), overrides=overrides or {})
        except ParameterError as error:
            raise with_source(error, layers) from None

    @property
    def all_collections(self) -> tuple[Collection, ...]:
        """The collections, including those of ``save_all`` and ``include_regex``."""
        further = [Collection("all")] if self.save_all else []
        if self.include_regex:
            further.append(Collection("default", include_regex=self.include_regex))
        return (*self.collections, *further)

    @property
    def train_interval(self) -> int | None:
        """Interval of training steps for collections without an interval; None lets the budget choose."""
        return Schedule.merged("train", self.levels("train")).interval

    def schedule(self, collection: Collection, mode: str) -> Schedule | None:
        """The steps of ``"train"``, ``"eval"`` or ``"predict"`` at which a collection is recorded; None for none."""
        merged = self._merged(collection, mode)
        return None if merged is None or merged.empty else merged

    def _merged(self, collection: Collection, mode: str) -> Schedule | None:
        """The schedule by the settings of run and collection; None for a mode that neither names."""
        if mode != "train" and mode not in {**(self.modes or {}), **(collection.modes or {})}:
            return None
        return Schedule.merged(mode, (*collection.levels(mode), *self.levels(mode)))

    def with_settings(self, settings: Mapping[str, Any]) -> SessionConfig:
        """This configuration with the settings of the script; those of the command line override them.

        Raises:
            ParameterError: An unknown or invalid setting.
        """
        check_names(settings, SETTINGS, "SessionConfig")
        return replace(self, **combine(self.settings(), settings, self.overrides))

    def settings(self) -> dict[str, Any]:
        """All settings that differ from the defaults, as plain JSON types."""
        return {**values(self), "collections": [collection.to_json() for collection in self.collections]}

    def to_env(self) -> dict[str, str]:
        """The environment variables that carry this configuration to a training process."""
        place = {"run": absolute(self.run), "attempt": self.attempt}
        return {environment.SESSION: json.dumps({**self.settings(), **place, "overrides": self.overrides})}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> SessionConfig | None:
        """The configuration from the environment, as a launcher wrote it; None for none."""
        text = environ.get(environment.SESSION)
        if not text:
            return None
        data = json.loads(text)
        data["strict"] = data.get("strict", False) or environment.strict()
        return cls(**data)


#: Fields of :class:`SessionConfig` that a file or a script may set.
SETTINGS = ("collections", *(info.name for info in describe(SessionConfig)))
