"""The hook configuration file of SageMaker Debugger, converted to settings of watchglass.

It has its documented meaning. Only the collections in the file are recorded (losses, metrics and learning rates always
are), by default every 500 steps, in every mode, by one worker, and as raw tensors unless reductions are named. Values
may be strings, as the SageMaker SDK writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from watchglass.config.collection import Collection
from watchglass.config.parameters import ParameterError, build, check_names
from watchglass.config.saving import MODE_NAMES
from watchglass.errors import InvalidValueError

_OWNER = "hook configuration"

#: Defaults of SageMaker Debugger.
_SAVE_INTERVAL, _WORKERS = 500, "one"

_HOOK, _COLLECTIONS = "HookParameters", "CollectionConfigurations"
_NAME, _PARAMETERS = "CollectionName", "CollectionParameters"
_TOP = (_HOOK, _COLLECTIONS, "S3OutputPath", "LocalPath")

_STEPS = ("save_interval", "save_steps", "start_step", "end_step")
_KEPT = {"reductions": "reductions", "save_raw_tensor": "save_raw", "save_shape": "save_shape"}
_OF_HOOK = ("save_all", "include_regex", "include_workers", *_KEPT, *_STEPS)
#: Keys of SageMaker Debugger without effect here.
_UNUSED = ("export_tensorboard", "tensorboard_dir", "dry_run")
_OF_COLLECTION = ("include_regex", "save_histogram", *_KEPT, *_STEPS)
_PREFIXED = tuple(f"{mode}.{name}" for mode in (*MODE_NAMES, "global") for name in _STEPS)


def read_hook_json(data: Any) -> dict[str, Any]:
    """Fields of :class:`~watchglass.config.SessionConfig` from the content of the file; only collections are validated.

    Raises:
        ParameterError: An invalid entry; its name is the key in the file.
    """
    content = _table(data, "the file")
    check_names(content, _TOP, _OWNER, "")
    hook = _table(content.get(_HOOK) or {}, _HOOK)
    check_names(hook, (*_OF_HOOK, *_UNUSED, *_PREFIXED), _OWNER, f"{_HOOK}.")
    settings = {name: hook[name] for name in ("save_all", "include_workers") if name in hook}
    settings = {"include_workers": _WORKERS, **settings, **_settings(hook)}
    settings.setdefault("save_interval", _SAVE_INTERVAL)
    settings.setdefault("save_raw", not settings.get("reductions"))
    settings["modes"] = {"eval": {}, "predict": {}, **settings.get("modes", {})}
    rows = content.get(_COLLECTIONS) or []
    if not isinstance(rows, list):
        raise ParameterError(_OWNER, _COLLECTIONS, f"must be a list but got {rows!r}")
    settings["collections"] = [_collection(row, f"{_COLLECTIONS}[{index}]") for index, row in enumerate(rows)]
    return settings


def original_key(setting: str) -> str:
    """The key in the file for the dotted name of a setting."""
    place, _, rest = setting.partition(".")
    return f"{_COLLECTIONS} {rest}".rstrip() if place == "collections" else f"{_HOOK}.{_original(setting)}"


def _collection(row: Any, place: str) -> Collection:
    row = _table(row, place)
    check_names(row, (_NAME, _PARAMETERS), _OWNER, f"{place}.")
    if not isinstance(row.get(_NAME), str):
        raise ParameterError(_OWNER, f"{place}.{_NAME}", f"must be text but got {row.get(_NAME)!r}")
    parameters = _table(row.get(_PARAMETERS) or {}, f"{place}.{_PARAMETERS}")
    prefix = f"{place}.{_PARAMETERS}."
    check_names(parameters, (*_OF_COLLECTION, *_PREFIXED), _OWNER, prefix)
    settings = _settings(parameters)
    if settings.get("reductions"):
        settings.setdefault("save_raw", False)
    if "save_histogram" in parameters:
        settings["save_histogram"] = parameters["save_histogram"]
    try:
        return build(Collection, {"name": row[_NAME], **settings})
    except ParameterError as error:
        raise ParameterError(_OWNER, prefix + _original(error.name), error.reason) from None
    except InvalidValueError as error:
        raise ParameterError(_OWNER, f"{place}.{_NAME}", f"is invalid: {error}") from None


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run and a collection share, under the names of watchglass."""
    settings = {ours: given[theirs] for theirs, ours in _KEPT.items() if given.get(theirs) is not None}
    if given.get("include_regex"):
        patterns = given["include_regex"]
        settings["include_regex"] = patterns.split(",") if isinstance(patterns, str) else patterns
    for name in _STEPS:
        # SageMaker Debugger has a mode for scripts that name none; watchglass detects modes, so it applies to all.
        value = given.get(name, given.get(f"global.{name}"))
        if value is not None:
            settings[name] = value
    modes: dict[str, dict[str, Any]] = {}
    for key in _PREFIXED:
        mode, _, name = key.partition(".")
        if mode in MODE_NAMES and given.get(key) is not None:
            modes.setdefault(mode, {})[name] = given[key]
    if modes:
        settings["modes"] = modes
    return settings


def _original(name: str) -> str:
    """The key in the file for a setting of watchglass."""
    name = re.sub(r"^modes\.", "", name)
    return next((theirs for theirs, ours in _KEPT.items() if ours == name), name)


def _table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ParameterError(_OWNER, place, f"must be an object but got {value!r}")
    return value
