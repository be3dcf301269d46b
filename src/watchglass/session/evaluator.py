"""The evaluator process of a training that is watched from its own script."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from watchglass.config import EvaluatorConfig, RuleSpec, environment, values
from watchglass.errors import InvalidValueError

#: How long the end of a training waits for the last findings to be printed.
_LAST_WORDS_S = 10.0


def rule_specs(rules: str | Iterable[Any]) -> tuple[RuleSpec, ...]:
    """What an evaluator is told of the rules that a script gave.

    Args:
        rules: ``"default"``; or a list of names, of ``"file.py:Class"``, of rule classes and of rule instances.

    Raises:
        InvalidValueError: A rule that another process could not import.
        UnknownNameError: A name that no rule has.
    """
    from watchglass.rules import default_rules, find_rule

    if isinstance(rules, str):
        if rules == "default":
            return default_rules()
        rules = rules.split(",")
    specs = []
    for rule in rules:
        spec = rule if isinstance(rule, RuleSpec) else _spec(rule)
        find_rule(spec.name)(**spec.parameters)
        specs.append(spec)
    return tuple(specs)


def _spec(rule: Any) -> RuleSpec:
    if isinstance(rule, str):
        return RuleSpec(rule.strip())
    cls = rule if isinstance(rule, type) else type(rule)
    given = {} if isinstance(rule, type) else values(rule)
    if cls.__module__.startswith("watchglass."):
        return RuleSpec(cls.__name__, given)
    if cls.__module__ == "__main__":
        raise InvalidValueError(
            f"rule {cls.__name__} must be in a file of its own, because another process evaluates it, "
            'but it is defined in the running script; move it and give rules=["my_rules.py:' + cls.__name__ + '"]'
        )
    return RuleSpec(f"{inspect.getsourcefile(cls)}:{cls.__name__}", given)


def start_evaluator(config: EvaluatorConfig, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the evaluator of a run, with a session of its own, so that Ctrl-C reaches the training only.

    Its standard input is a pipe that only the calling process holds: when that ends, in whatever way, the evaluator
    reads end of file, finishes what there is and ends.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "watchglass.evaluate", config.to_json()],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


class WatchedEvaluator:
    """Starts the evaluator when the worker has joined, and lets it finish when the training ends."""

    def __init__(self, config: EvaluatorConfig) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, attempt: int) -> None:
        """Called on the recorder's thread once the run exists; only rank 0 has an evaluator."""
        if environment.rank() == 0:
            config = replace(self._config, attempt=attempt)
            self._process = start_evaluator(config, environment.for_evaluator(os.environ))

    def finish(self) -> None:
        """Let go of the lifeline and give the evaluator a moment for its last words; it ends by itself."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_S)
