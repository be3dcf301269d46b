"""Options that choose what is captured, and the configuration that follows from them and from a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from watchglass.cli.declaring import option
from watchglass.config import EvaluatorConfig, SessionConfig, SettingsLayer, add_settings, find_file, read_file
from watchglass.errors import InvalidValueError
from watchglass.session import capture_of_rules

ConfigFile = Annotated[
    str | None, option("--config FILE", "File of capture settings. [default: the nearest watchglass.toml, if any]")
]
Collections = Annotated[
    list[str] | None,
    option(
        "--collection NAME[=REGEX]",
        "Record a built-in collection, or the tensors whose names match REGEX; NAME:SETTING=VALUE,... changes the "
        "settings of a collection. Repeatable.",
    ),
]
SaveRaw = Annotated[
    list[str] | None,
    option("--save-raw NAME,...", "Collections whose tensors are recorded in full, besides statistics. Repeatable."),
]
SaveAll = Annotated[bool, option("--save-all", "Record every tensor the run produces.")]
IncludeWorkers = Annotated[str | None, option("--include-workers all|one", "Ranks that record tensors. [default: all]")]
SaveInterval = Annotated[
    str | None,
    option("--save-interval N", "Record statistics every N steps. [default: as often as the overhead budget allows]"),
]
OverheadBudget = Annotated[
    str | None,
    option("--overhead-budget PERCENT", "Largest share of the run's time that capture may take. [default: 1]"),
]
NoProfiler = Annotated[bool, option("--no-profiler", "Do not sample system metrics, nor record phases of steps.")]
SampleInterval = Annotated[
    str | None, option("--sample-interval SECONDS", "Sample system metrics every SECONDS, 0.1 to 60. [default: 0.5]")
]
ModuleTimes = Annotated[
    bool, option("--module-times", "Time the modules of the model, forward and backward, in some steps.")
]
ProfileSteps = Annotated[
    str | None,
    option(
        "--profile-steps START:STOP,...",
        "Profile the operators of these training steps with PyTorch's profiler, STOP excluded; 60s:65s for the "
        "steps that begin in these seconds after the first update.",
    ),
]
KeepTraces = Annotated[
    bool,
    option(
        "--keep-traces",
        "Keep PyTorch's traces of the steps of --profile-steps, and of watchglass profile, in the run, at most 64 MiB.",
    ),
]
PythonProfile = Annotated[
    str | None,
    option(
        "--python-profile START:STOP,...", "Profile the Python functions of these training steps, in the same form."
    ),
]
PythonProfiler = Annotated[
    str | None,
    option(
        "--python-profiler cprofile|pyinstrument",
        "cprofile counts every call, pyinstrument looks at the stack every millisecond. [default: cprofile]",
    ),
]
TensorBoard = Annotated[
    str | None,
    option(
        "--tensorboard DIR",
        "Write event files of TensorBoard during the run, in a separate process. DIR is the folder of its --logdir.",
    ),
]
PlannedSteps = Annotated[
    str | None,
    option("--planned-steps N", "Planned number of training steps; a stopped run then reports the steps saved."),
]


def given_settings(
    *,
    collections: list[str] | None,
    save_raw: list[str] | None,
    overhead_budget: str | None,
    tensorboard: str | None = None,
    profiler: Mapping[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Settings of the command line; :func:`capture_config` validates them.

    Args:
        collections: Values of ``--collection``.
        save_raw: Values of ``--save-raw``.
        overhead_budget: Value of ``--overhead-budget``.
        tensorboard: Value of ``--tensorboard``.
        profiler: Settings of the profiler; None for an option not given.
        **others: Values of options that have the name of their setting; None or False for an option not given.

    Raises:
        InvalidValueError: A text that is no value of its option, or options that contradict each other.
    """
    settings = {name: value for name, value in others.items() if value not in (None, False)}
    of_profiler = {
        name: value for name, value in (profiler or {}).items() if value is not None and (value or name == "enabled")
    }
    if of_profiler.get("enabled") is False and len(of_profiler) > 1:
        other = _option({}, f"profiler.{next(name for name in of_profiler if name != 'enabled')}")
        raise InvalidValueError(f"use either --no-profiler or {other}, not both")
    if of_profiler:
        settings["profiler"] = of_profiler
    if tensorboard is not None:
        settings["tensorboard"] = {"folder": tensorboard}
    if overhead_budget is not None:
        settings["overhead_budget"] = parse_percent(overhead_budget)
    table = parse_collections(collections or ())
    for name in (part.strip() for text in save_raw or () for part in text.split(",")):
        if not name:
            raise InvalidValueError(f"--save-raw must name collections, such as weights,biases, but got {save_raw}")
        table.setdefault(name, {})["save_raw"] = True
    if table:
        settings["collections"] = table
    return settings


def capture_config(
    named: str | None, given: dict[str, Any], evaluator: EvaluatorConfig | None = None
) -> tuple[Path | None, SessionConfig]:
    """The configuration file in use, None for none, and the settings of rules, file and command line, merged.

    Args:
        named: The file that is named; None searches for one.
        given: Settings of the command line, which override those of the file.
        evaluator: The evaluator, whose rules need some capture; None for none.

    Raises:
        MissingFileError: The file that is named does not exist.
        InvalidValueError: An invalid setting; the message names the option, the file, or both where they contradict
            each other.
    """
    path = find_file(named)
    file = read_file(path)
    rules = SettingsLayer(capture_of_rules(evaluator, file.settings, given))
    options = SettingsLayer(given, "the options given", partial(_option, given))
    return path, SessionConfig.merged("", rules, file, options, overrides=given)


def _option(given: Mapping[str, Any], setting: str) -> str:
    """A setting as the command line spells it: its option, and for a collection the name."""
    field, _, rest = setting.partition(".")
    if field == "tensorboard":
        return "--tensorboard"
    if field != "collections":
        name = rest if field == "profiler" else setting
        return "--no-profiler" if name == "enabled" else "--" + name.removesuffix("_s").replace("_", "-")
    # --collection gives texts, so True is from --save-raw.
    only_raw = given.get("collections", {}).get(rest) == {"save_raw": True}
    return f"{'--save-raw' if only_raw else '--collection'} {rest}"


def parse_collections(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings of collections by name, from the values of ``--collection``.

    ``"inputs"``, ``"first=^conv1"`` and ``"gradients:save_interval=5,reductions=median,prod"``, in which a part that
    has no ``=`` belongs to the value before it.

    Raises:
        InvalidValueError: A text of another form.
    """
    table: dict[str, dict[str, Any]] = {}
    for text in texts:
        # The name, the first of = and :, and what follows it.
        name, sign, rest = [*re.split("([=:])", text, maxsplit=1), "", ""][:3]
        name = name.strip()
        if not name or (sign and not rest):
            raise InvalidValueError(
                f"--collection must be NAME, NAME=REGEX or NAME:SETTING=VALUE,SETTING=VALUE but got {text!r}"
            )
        settings = table.setdefault(name, {})
        if sign == "=":
            settings["include_regex"] = (*settings.get("include_regex", ()), rest)
        elif sign == ":":
            table[name] = add_settings(settings, _parse_settings(rest, name))
    return table


def parse_percent(text: str) -> float:
    """``"1"``, ``"0.5"`` or ``"2%"`` as a ratio.

    Raises:
        InvalidValueError: Not a number above 0 and at most 100.
    """
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = float("nan")
    if not 0 < percent <= 100:
        raise InvalidValueError(f"--overhead-budget must be a percentage above 0 and at most 100 but got {text!r}")
    return percent / 100


def _parse_settings(text: str, name: str) -> Mapping[str, Any]:
    """``"save_interval=5,modes.eval.save_interval=1"`` as nested settings."""
    pairs: list[list[str]] = []
    for part in text.split(","):
        setting, equals, value = part.partition("=")
        if equals and setting.strip().replace(".", "_").isidentifier():
            pairs.append([setting.strip(), value])
        elif pairs:
            pairs[-1][1] += "," + part
        else:
            raise InvalidValueError(f"a setting of --collection {name} must be SETTING=VALUE but got {part!r}")
    settings: dict[str, Any] = {}
    for setting, value in pairs:
        *path, last = setting.split(".")
        place: Any = settings
        for number, step in enumerate(path, start=1):
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise _not_a_table(name, ".".join(path[:number]), place)
        if isinstance(place.get(last), dict):
            raise _not_a_table(name, setting, value)
        place[last] = value
    return settings


def _not_a_table(collection: str, setting: str, value: str) -> InvalidValueError:
    return InvalidValueError(
        f"--collection {collection}.{setting} is given both as a table and as the value {value!r}; use one of them"
    )
