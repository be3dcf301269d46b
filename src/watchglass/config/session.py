"""What a launcher tells a training, validated before it leaves."""

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
from watchglass.config.saving import MODE_NAMES, STEP_SETTINGS, SaveSettings, Schedule
from watchglass.config.sources import Layer, combine, read_collections, with_source

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class SessionConfig(SaveSettings):
    """How one training is captured.

    The settings of :class:`Collection` that can be given here hold for every collection that does not say otherwise.

    Attributes:
        run: Location of the run: a folder, or an address like ``s3://bucket/path``.
        attempt: Number of the attempt; None lets the session begin one.
        collections: What is kept. A list (of collections, names or tables) means exactly these. A table by name
            changes what is kept by default, ``{"inputs": True, "updates": False, "gradients": {"save_raw": True}}``.
        save_all: Keep everything that the training has by itself, as collection ``all`` does.
        include_regex: Keep tensors in whose name one of these is found too, as collection ``default`` does.
        save_interval: Interval of every collection without one of its own; None lets the budget choose.
        include_workers: ``"all"``, or ``"one"``: only rank 0 keeps tensors, the others what is recorded at every step.
        facts: Kinds of facts to record; None for those that are recorded by default.
        overhead_budget: Share of the training's time that capture may cost, as a ratio.
        capture_memory_bytes: Bound of the memory for copies of weights, from which updates are computed, and of that of
            a re-run. Working memory of statistics on a device is small and beside it, as is what waits to be written.
        flush_interval_s: How often records are written; None for 0.5 s on a local folder, and on an object store 5 s
            or more (see :func:`watchglass.store.StorePolicy.intervals`).
        queue_bytes: Bound of the records that wait to be written; beyond it they are dropped, and counted.
        spool_bytes: Bound of what waits on this machine's disk for an object store that is away or slow; 0 for none.
        raw_keep_bytes: Of each worker's raw tensors so many bytes are kept, the oldest files go; None keeps all.
        flight_recorder: Keep the last steps where they survive ``kill -9``, in some 8 MiB of files per worker.
        planned_steps: TRAIN steps the training will have, where known.
        strict: Faults inside capture raise instead of detaching. For tests.
        overrides: Settings of the command line, which come before those that the script gives.
    """

    run: str
    attempt: int | None = None
    collections: tuple[Collection, ...] = DEFAULT_COLLECTIONS
    save_all: bool = parameter(False, help="keep everything that the training has by itself")
    include_regex: tuple[str, ...] = parameter((), help="keep these tensors too", split=False)
    include_workers: str = parameter("all", help="which ranks keep tensors", choices=("all", "one"))
    facts: tuple[str, ...] | None = parameter(None, help="kinds of facts to record", choices=tuple(FACTS))
    overhead_budget: float = parameter(0.01, help="share of the training's time", unit="ratio", gt=0, le=1)
    capture_memory_bytes: int = parameter(256 * MEBIBYTE, help="memory for copies of weights", unit="bytes", ge=0)
    flush_interval_s: float | None = parameter(None, help="how often records are written", unit="seconds", gt=0)
    queue_bytes: int = parameter(64 * MEBIBYTE, help="records that may wait to be written", unit="bytes", ge=1)
    spool_bytes: int = parameter(1024 * MEBIBYTE, help="what may wait for an object store", unit="bytes", ge=0)
    raw_keep_bytes: int | None = parameter(None, help="raw tensors that are kept of each worker", unit="bytes", ge=1)
    flight_recorder: bool = parameter(True, help="keep the last steps where they survive kill -9")
    planned_steps: int | None = parameter(None, help="TRAIN steps the training will have", unit="steps", ge=1)
    strict: bool = parameter(False, help="faults inside capture raise")
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate(self)
        check_patterns(self.include_regex, "SessionConfig")
        self.check_modes("SessionConfig")
        object.__setattr__(self, "collections", read_collections(self.collections, DEFAULT_COLLECTIONS))
        for collection in self.collections:
            for mode in MODE_NAMES:
                merged = self._merged(collection, mode)
                if merged is not None and merged.empty and merged.end != 0:
                    raise ParameterError(
                        "SessionConfig",
                        f"collections.{collection.name}",
                        f"keeps no step in mode {mode}: together with the settings of the whole training, start_step "
                        f"is {merged.start}, end_step {merged.end} and save_interval "
                        f"{merged.interval or 'left to the budget'}; to keep nothing use end_step = 0",
                        related=[
                            f"{place}{name}"
                            for of in ("", f"collections.{collection.name}.")
                            for place in (of, f"{of}modes.{mode}.")
                            for name in STEP_SETTINGS
                        ],
                    )

    @classmethod
    def merged(cls, run: str, *layers: Layer, overrides: Mapping[str, Any] | None = None) -> SessionConfig:
        """The configuration by the settings of several sources; a later source overrides an earlier one.

        Args:
            run: Location of the run.
            *layers: The settings of each source.
            overrides: Settings that also override those of the script, see above.

        Raises:
            InvalidValueError: A setting that is unknown, invalid, or contradicts another; the message names its source.
        """
        try:
            return cls(run, **combine(*(layer.settings for layer in layers)), overrides=overrides or {})
        except ParameterError as error:
            raise with_source(error, layers) from None

    @property
    def all_collections(self) -> tuple[Collection, ...]:
        """The collections, with those that ``save_all`` and ``include_regex`` stand for."""
        further = [Collection("all")] if self.save_all else []
        if self.include_regex:
            further.append(Collection("default", include_regex=self.include_regex))
        return (*self.collections, *further)

    @property
    def train_interval(self) -> int | None:
        """Interval of training steps for collections without one of their own; None lets the budget choose."""
        return Schedule.merged("train", self.levels("train")).interval

    def schedule(self, collection: Collection, mode: str) -> Schedule | None:
        """At which steps of ``"train"``, ``"eval"`` or ``"predict"`` a collection is kept; None for never."""
        merged = self._merged(collection, mode)
        return None if merged is None or merged.empty else merged

    def _merged(self, collection: Collection, mode: str) -> Schedule | None:
        """The schedule by the settings of both; None in a mode that neither names."""
        if mode != "train" and mode not in {**(self.modes or {}), **(collection.modes or {})}:
            return None
        return Schedule.merged(mode, (*collection.levels(mode), *self.levels(mode)))

    def with_settings(self, settings: Mapping[str, Any]) -> SessionConfig:
        """This configuration with settings that the script gives; those of the command line stay.

        Raises:
            ParameterError: A setting that does not exist or cannot be.
        """
        check_names(settings, SETTINGS, "SessionConfig")
        return replace(self, **combine(self.settings(), settings, self.overrides))

    def settings(self) -> dict[str, Any]:
        """Everything that is not as by default, as plain JSON types; it makes the same configuration again."""
        return {**values(self), "collections": [collection.to_json() for collection in self.collections]}

    def to_env(self) -> dict[str, str]:
        """The environment variables that carry this configuration to a training process."""
        place = {"run": absolute(self.run), "attempt": self.attempt}
        return {environment.SESSION: json.dumps({**self.settings(), **place, "overrides": self.overrides})}

    @classmethod
    def from_env(cls) -> SessionConfig | None:
        """The configuration that a launcher put into the environment, or None."""
        text = os.environ.get(environment.SESSION)
        if not text:
            return None
        data = json.loads(text)
        data["strict"] = data.get("strict", False) or environment.strict()
        return cls(**data)


#: Fields of :class:`SessionConfig` that a file or a script may set.
SETTINGS = ("collections", *(info.name for info in describe(SessionConfig)))
