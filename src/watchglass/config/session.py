"""What a launcher tells a training and an evaluator, validated before it leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from watchglass.config import environment
from watchglass.config.collection import Collection
from watchglass.config.parameters import parameter, validate, values
from watchglass.records import Severity

#: Statistics of these are kept when nobody says otherwise.
DEFAULT_COLLECTIONS = tuple(
    Collection(name) for name in ("weights", "biases", "gradients", "updates", "outputs", "inputs")
)

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class SessionConfig:
    """How one training is captured.

    Attributes:
        run: Path of the run directory.
        attempt: Number of the attempt; None lets the session begin one.
        collections: What is kept.
        save_interval: Interval of every collection without one of its own; None lets the budget choose.
        overhead_budget: Share of the training's time that capture may cost, as a ratio.
        capture_memory_bytes: Bound of the memory that capture holds at any time.
        flush_interval_s: How often records are written.
        queue_bytes: Bound of the records that wait to be written; beyond it they are dropped, and counted.
        planned_steps: TRAIN steps the training will have, where known.
        strict: Faults inside capture raise instead of detaching. For tests.
    """

    run: str
    attempt: int | None = None
    collections: tuple[Collection, ...] = DEFAULT_COLLECTIONS
    save_interval: int | None = parameter(None, help="interval of captures", unit="steps", ge=1)
    overhead_budget: float = parameter(0.01, help="share of the training's time", unit="ratio", gt=0, le=1)
    capture_memory_bytes: int = parameter(256 * MEBIBYTE, help="memory that capture may hold", unit="bytes", ge=0)
    flush_interval_s: float = parameter(0.5, help="how often records are written", unit="seconds", gt=0)
    queue_bytes: int = parameter(64 * MEBIBYTE, help="records that may wait to be written", unit="bytes", ge=1)
    planned_steps: int | None = parameter(None, help="TRAIN steps the training will have", unit="steps", ge=1)
    strict: bool = parameter(False, help="faults inside capture raise")

    def __post_init__(self) -> None:
        validate(self)
        object.__setattr__(self, "collections", tuple(self.collections))

    def to_env(self) -> dict[str, str]:
        """The environment variables that carry this configuration to a training process."""
        data = {"run": os.path.abspath(self.run), "attempt": self.attempt, **values(self)}
        data["collections"] = [collection.to_json() for collection in self.collections]
        return {environment.SESSION: json.dumps(data)}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> SessionConfig | None:
        """The configuration that a launcher put into the environment, or None."""
        text = (environ if environ is not None else os.environ).get(environment.SESSION)
        if not text:
            return None
        data = json.loads(text)
        data["collections"] = tuple(Collection.from_json(row) for row in data["collections"])
        data["strict"] = data.get("strict", False) or environment.strict(environ)
        return cls(**data)


@dataclass(frozen=True)
class RuleSpec:
    """Names a rule to evaluate, with the parameters that differ from its defaults.

    Attributes:
        name: Built-in name, ``"DeadRelu"``, or ``"path/to/file.py:ClassName"``.
        parameters: Values by parameter name; strings are converted to the parameter's type.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Name and parameters as plain JSON types."""
        return {"name": self.name, "parameters": self.parameters}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RuleSpec:
        """The specification that :meth:`to_json` gave."""
        return cls(data["name"], dict(data.get("parameters", {})))


@dataclass(frozen=True)
class EvaluatorConfig:
    """What an evaluator process is told.

    Attributes:
        run: Path of the run directory.
        attempt: The attempt to follow.
        rules: Rules to evaluate.
        stop_on: Stop the training at a finding of at least this severity; None never stops it.
        grace_s: Seconds to wait for a step boundary before a stop by signal.
        poll_s: Seconds between looks at the run.
        quiet: Print no line per finding.
    """

    run: str
    attempt: int
    rules: tuple[RuleSpec, ...]
    stop_on: Severity | None = None
    grace_s: float = parameter(30.0, help="wait for a step boundary before a stop by signal", unit="seconds", gt=0)
    poll_s: float = parameter(0.1, help="time between looks at the run", unit="seconds", gt=0)
    quiet: bool = parameter(False, help="print no line per finding")

    def __post_init__(self) -> None:
        validate(self)

    def to_json(self) -> str:
        """One line of JSON."""
        data = {"run": os.path.abspath(self.run), "attempt": self.attempt, **values(self)}
        data["rules"] = [rule.to_json() for rule in self.rules]
        data["stop_on"] = self.stop_on.value if self.stop_on else None
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> EvaluatorConfig:
        """The configuration that :meth:`to_json` gave."""
        data = json.loads(text)
        data["rules"] = tuple(RuleSpec.from_json(row) for row in data["rules"])
        data["stop_on"] = Severity(data["stop_on"]) if data.get("stop_on") else None
        return cls(**data)
