"""Requests to another process and its answers: JSON text both ways, and no objects.

This module does not know how the text travels, so a task on a cluster and a call in a test do the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from watchglass import errors
from watchglass.config import EvaluatorConfig
from watchglass.errors import ClusterError, DamagedDataError, WatchglassError, in_a_line
from watchglass.evaluate.engine.rule_status import PartialEvaluation
from watchglass.evaluate.replaying import replay_part
from watchglass.evaluate.scaling.contents import ListedStore, RunContents
from watchglass.evaluate.scaling.plan import Part
from watchglass.evaluate.scaling.rule_files import place_rule_files
from watchglass.store import Store, open_store
from watchglass.version import __version__


def request_of(
    part: Part, config: EvaluatorConfig, files: Mapping[str, str], contents: RunContents | None = None
) -> str:
    """A part as text.

    Args:
        part: What to evaluate.
        config: Rules whose files are absolute, thresholds, limits; its run does not matter.
        files: Source of the rule files by path.
        contents: The listing of its run; None where the process that evaluates the part lists the run itself.
    """
    segments = None
    if contents is not None and contents.segments is not None:
        workers = contents.workers if part.workers is None else part.workers
        segments = [row for worker in workers for row in contents.segments[worker]]
    setup = setup_of(replace(config, run=part.run), files)
    return json.dumps({**setup, "workers": part.workers, "rules": part.rules, "segments": segments})


def setup_of(config: EvaluatorConfig, files: Mapping[str, str]) -> dict[str, Any]:
    """What another process needs to evaluate as this one would.

    Args:
        config: The run, rules whose files are absolute, thresholds, limits. Its secrets are left out.
        files: Source of the rule files by path.
    """
    safe = replace(config, stop_on=None, actions=(), causes=())
    return {"version": __version__, "folder": os.getcwd(), "config": safe.to_line(), "files": files}


def apply_setup(data: Mapping[str, Any]) -> tuple[EvaluatorConfig, Callable[[str], str]]:
    """The configuration of a :func:`setup_of`, and a function that gives rule files in an answer the caller's names.

    This process changes to the working directory of the caller, where that exists.

    Raises:
        ClusterError: It comes from another release.
    """
    with suppress(OSError):  # parameters of rules may be paths; where this folder is missing they must be absolute
        os.chdir(data["folder"])
    if data["version"] != __version__:
        raise ClusterError(
            f"every machine needs the same watchglass but this one has {__version__} and the other {data['version']}"
        )
    config = EvaluatorConfig.from_line(data["config"])
    rules, moved = place_rule_files(config.rules, data["files"])

    def renamed(text: str) -> str:
        for here, original in moved.items():
            text = text.replace(json.dumps(here)[1:-1], json.dumps(original)[1:-1])  # in the traceback of a rule
        return text

    return replace(config, rules=rules), renamed


def answer(request: str, opened: Callable[[str], Store] = open_store) -> str:
    """Evaluates one part; the same request has the same answer, except for the time it took.

    An error of the run or of a rule is part of the answer. So a caller repeats a request only after a process died.
    """
    begin_s = time.process_time()
    data = json.loads(request)
    try:
        config, renamed = apply_setup(data)
        with closing(opened(config.run)) as store:
            # With the listing of the driver, no part lists the run again, and all parts see the same moment of the run.
            run = store if data["segments"] is None else ListedStore(store, data["segments"])
            partial = replay_part(run, config, workers=data["workers"], rules=data["rules"])
        text = f'"partial": {renamed(json.dumps(partial.to_json()))}'
    except Exception as error:  # of one run; the others are evaluated
        text = f'"error": {json.dumps(error_to_json(error))}'
    return f'{{"cpu_s": {time.process_time() - begin_s:.6f}, {text}}}'


def read_answer(text: str) -> PartialEvaluation:
    """The result in the text of :func:`answer`.

    Raises:
        WatchglassError: The part could not be evaluated; the message is the reason.
    """
    data = json.loads(text)
    if "error" in data:
        raise error_of(*data["error"])
    return PartialEvaluation.from_json(data["partial"])


def error_to_json(error: Exception) -> tuple[str, str]:
    """Name and message of an error, as JSON values; any error that is not ours counts as damaged data."""
    kind = type(error) if isinstance(error, WatchglassError) else DamagedDataError
    return kind.__name__, in_a_line(error)


def error_of(name: str, message: str) -> WatchglassError:
    """The error of another process."""
    kind = getattr(errors, name, WatchglassError)
    known = isinstance(kind, type) and issubclass(kind, WatchglassError)
    return (kind if known else WatchglassError)(message)
