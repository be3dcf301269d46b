"""What a process elsewhere is asked and what it answers: text, JSON both ways, and no object of anybody's class.

Nothing here knows how the text travels, so the same is done by a task on a cluster and by a call in a test.
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
from watchglass.store import open_store
from watchglass.version import __version__


def request_of(
    part: Part, config: EvaluatorConfig, files: Mapping[str, str], contents: RunContents | None = None
) -> str:
    """A part as it is sent.

    Args:
        part: What to evaluate.
        config: Rules whose files are absolute, thresholds, limits; its run does not matter.
        files: Source of the rule files by path.
        contents: What its run holds; None where whoever evaluates the part lists that.
    """
    segments = None
    if contents is not None and contents.segments is not None:
        workers = contents.workers if part.workers is None else part.workers
        segments = [row for worker in workers for row in contents.segments[worker]]
    outfit = outfit_of(replace(config, run=part.run), files)
    return json.dumps({**outfit, "workers": part.workers, "rules": part.rules, "segments": segments})


def outfit_of(config: EvaluatorConfig, files: Mapping[str, str]) -> dict[str, Any]:
    """What a process elsewhere needs to evaluate as this one would.

    Args:
        config: The run, rules whose files are absolute, thresholds, limits. What is secret in it stays here.
        files: Source of the rule files by path.
    """
    safe = replace(config, stop_on=None, actions=(), causes=())
    return {"version": __version__, "folder": os.getcwd(), "config": safe.to_line(), "files": files}


def fitted_out(data: Mapping[str, Any]) -> tuple[EvaluatorConfig, Callable[[str], str]]:
    """The configuration of an :func:`outfit_of`, and what names rule files in an answer as the caller names them.

    This process goes to the working directory of the caller, if that is there too.

    Raises:
        ClusterError: It comes from another release.
    """
    with suppress(OSError):  # parameters of rules may be paths; they have to be absolute where this folder is missing
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


def answer(request: str) -> str:
    """Evaluates one part; the same request has the same answer, up to the time that it took.

    What goes wrong with the run or a rule is part of the answer, so that whoever asks again does so for a process that
    died and for nothing else.
    """
    begin_s = time.process_time()
    data = json.loads(request)
    try:
        config, renamed = fitted_out(data)
        with closing(open_store(config.run)) as store:
            # What was listed for all parts is not listed again by each, and is one moment of the run for all of them.
            run = store if data["segments"] is None else ListedStore(store, data["segments"])
            partial = replay_part(run, config, workers=data["workers"], rules=data["rules"])
        text = f'"partial": {renamed(json.dumps(partial.to_json()))}'
    except Exception as error:  # whatever is wrong with one run, the others are judged
        text = f'"error": {json.dumps(error_to_json(error))}'
    return f'{{"cpu_s": {time.process_time() - begin_s:.6f}, {text}}}'


def read_answer(text: str) -> PartialEvaluation:
    """What :func:`answer` gave.

    Raises:
        WatchglassError: Why the part could not be evaluated.
    """
    data = json.loads(text)
    if "error" in data:
        raise error_of(*data["error"])
    return PartialEvaluation.from_json(data["partial"])


def error_to_json(error: Exception) -> tuple[str, str]:
    """An error as it travels: its name and what is wrong; where it is no error of ours, the data is."""
    kind = type(error) if isinstance(error, WatchglassError) else DamagedDataError
    return kind.__name__, in_a_line(error)


def error_of(name: str, message: str) -> WatchglassError:
    """An error that was raised elsewhere."""
    kind = getattr(errors, name, WatchglassError)
    known = isinstance(kind, type) and issubclass(kind, WatchglassError)
    return (kind if known else WatchglassError)(message)
