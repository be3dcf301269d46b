"""What a page can ask of a job, or of another process: each answers with a sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping

from watchglass.diagnose import rule_guide
from watchglass.errors import InvalidValueError, LaunchError
from watchglass.run import open_run, request_stop

#: Most digits of a number of steps, and most seconds of a replay.
_DIGITS, _REPLAY_S = 9, 300.0
#: Parameters as text: names, numbers and words. No rule of a file can be named so.
_PARAMETERS = re.compile(r"\s*(?:[a-z_]+=[\w.+-]+\s*(?:[,\s]\s*|$))*", re.ASCII)
#: What a switch can be, and what that means for each that can be changed.
ON_OFF = ("off", "on")
_SWITCHES = {
    "enabled": ("the machine is not sampled, and nothing is profiled", "the machine is sampled"),
    "module_times": ("modules are not timed", "modules are timed in some steps"),
}
#: One replay at a time: each takes a core.
_replaying = threading.Lock()


def profile_steps(location: str, given: Mapping[str, str]) -> str:
    """Profile the operators of the next steps."""
    text = given.get("steps", "")
    steps = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    asked = open_run(location).profile(steps)
    return f"asked for steps {asked.steps.start} to {asked.steps.stop - 1}; their operators will appear below"


def stop_job(location: str, given: Mapping[str, str]) -> str:
    """End the training."""
    if given.get("confirmed") != "yes":
        raise InvalidValueError("the stop must be confirmed")
    at_step = request_stop(open_run(location), "stopped by a person on the dashboard")
    return f"all workers end after step {at_step}"


def change_settings(location: str, given: Mapping[str, str]) -> str:
    """Change the profiler: how often the machine is sampled, whether at all, and whether modules are timed."""
    settings: dict[str, float | bool] = {}
    for name in _SWITCHES:
        if (text := given.get(name)) is not None:
            if text not in ON_OFF:
                raise InvalidValueError(f"{name} must be on or off but got {text!r:.50}")
            settings[name] = text == "on"
    if (text := given.get("sample_interval_s")) is not None:
        try:
            settings["sample_interval_s"] = float(text[:_DIGITS])
        except ValueError:
            raise InvalidValueError(f"sample_interval_s must be a number of seconds but got {text!r:.50}") from None
    if not settings:
        raise InvalidValueError(f"a change must have one of sample_interval_s, {', '.join(_SWITCHES)} but has none")
    at_step = open_run(location).change_profiler(**settings)
    return f"from step {at_step} on " + ", ".join(_changed(name, value) for name, value in settings.items())


def _changed(name: str, value: float | bool) -> str:
    return _SWITCHES[name][bool(value)] if name in _SWITCHES else f"there is a sample every {value:g} s"


def replay_rule(location: str, given: Mapping[str, str]) -> str:
    """Evaluate a built-in rule over the stored run with other parameters, in a separate process."""
    name, parameters = given.get("rule", ""), given.get("parameters", "")
    if rule_guide(name) is None:
        raise InvalidValueError(f"rule must be one that is built in but got {name!r:.50}")
    if not _PARAMETERS.fullmatch(parameters):
        raise InvalidValueError(f"parameters must be NAME=VALUE, NAME=VALUE but got {parameters!r:.100}")
    named = ",".join(re.split(r"[,\s]+", parameters.strip(", "))) if parameters.strip(", ") else ""
    if not _replaying.acquire(blocking=False):
        raise LaunchError("another rule is being evaluated; try again when it is done")
    words = ("backtest", f"{name}:{named}" if named else name, location, "--format", "json", "--severity", "info")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "watchglass", *words],
            capture_output=True, text=True, check=False, timeout=_REPLAY_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(f"the evaluation took longer than {_REPLAY_S:g} s and was ended") from None
    finally:
        _replaying.release()
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InvalidValueError(
            said[-1].removeprefix("watchglass: ").removeprefix("error: ") if said else "the evaluation failed"
        )
    (row,) = json.loads(done.stdout)["combinations"][0]["runs"]
    if not row["fired"]:
        return f"with {named or 'its defaults'} it finds nothing ({row['status']})"
    steps = f"first at step {row['first_step']:,}, last at {row['last_step']:,}"
    return f"with {named or 'its defaults'} it finds issues at {row['count']:,} steps, {steps} ({row['severity']})"
