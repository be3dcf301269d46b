"""Settings of a run from a file: ``watchglass.toml``, or the hook configuration of SageMaker Debugger.

The launcher and :func:`watchglass.watch` read the file before the run; capture never does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from watchglass.config import environment
from watchglass.config.evaluation import ActionSpec
from watchglass.config.hook_json import original_key, read_hook_json
from watchglass.config.parameters import ParameterError, check_names
from watchglass.config.plugins import file_and_class, names_file, seen_from
from watchglass.config.regular_files import near_file, read_regular, why_no_file
from watchglass.config.session import SETTINGS
from watchglass.config.sources import SettingsLayer
from watchglass.config.trust import untrusted
from watchglass.errors import InvalidValueError, MissingFileError

#: Name of the file to search for.
FILE_NAME = "watchglass.toml"
#: Largest size of a file of settings or causes.
_MOST_BYTES = 16 << 20


def find_file(named: Any = None, *, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The configuration file in use; None for none.

    It is the named file, else the file in ``SMDEBUG_CONFIG_FILE_PATH``, else the nearest ``watchglass.toml`` in the
    working directory and its parents, up to the root of the repository or the home directory.

    Args:
        named: A path; None to search.
        folder: Where a search begins; by default the working directory.
        environ: The environment.

    Raises:
        InvalidValueError: ``named`` is not a path.
        MissingFileError: The named file does not exist.
    """
    if named is None:
        named = environment.hook_configuration(environ)
        if named is None:
            return _nearest(folder or Path.cwd(), Path(environ.get("HOME") or Path.home()))
        source = f"configuration file {named} of {environment.HOOK_CONFIGURATION}"
    elif not isinstance(named, (str, os.PathLike)) or not os.fspath(named):
        raise InvalidValueError(f"the configuration file must be a path but got {named!r}")
    else:
        source = f"configuration file {os.fspath(named)}"
    path = Path(named)
    if not path.is_file():
        raise MissingFileError(f"{source} {why_no_file(path)}{near_file(path)}")
    return path


def read_file(path: str | os.PathLike[str] | None) -> SettingsLayer:
    """The settings of a file as one of several sources; none where there is no file.

    :meth:`SessionConfig.merged` validates their values, once, with those of the other sources.

    Args:
        path: A TOML file, or with the suffix ``.json`` a hook configuration of SageMaker Debugger.

    Raises:
        InvalidValueError: The file is unreadable or has an unknown setting; the message names file and key.
    """
    if path is None:
        return SettingsLayer({})
    path = Path(path)
    spelled: Callable[[str], str] = str
    try:
        if path.suffix.lower() == ".json":
            settings, spelled = read_hook_json(_parsed(path, json.loads, "JSON")), original_key
        else:
            settings = _toml(path)
            settings.pop("actions", None)  # for the evaluator, see read_actions
            check_names(settings, SETTINGS, FILE_NAME)
    except ParameterError as error:
        raise InvalidValueError(f"{path}: {error.name} {error.reason}") from None
    return SettingsLayer(settings, str(path), lambda setting: f"{path}: {spelled(setting)}")


def read_actions(path: str | os.PathLike[str], *, named: bool) -> tuple[ActionSpec, ...]:
    """The actions in the tables ``[[actions]]`` of a file; none for a hook configuration of SageMaker Debugger.

    Relative paths of custom actions begin at the folder of the file.

    Args:
        path: The file.
        named: Whether the user named the file. Any user who can write to a parent folder may have written a file found
            by searching, and actions are programs and addresses.

    Raises:
        InvalidValueError: A table without a name, another type than a list of tables, or a file found by searching that
            other users than this one and root may have written.
        MissingFileError: A file of actions does not exist.
    """
    path = Path(path)
    if path.suffix.lower() == ".json":
        return ()
    given = _toml(path).get("actions", [])
    if not isinstance(given, list) or not all(isinstance(table, dict) for table in given):
        raise InvalidValueError(f"{path}: actions must be tables, each below a line [[actions]], but got {given!r:.80}")
    if given and not named:
        _check_trusted(path, path)
    specs = []
    for number, table in enumerate(given, 1):
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise InvalidValueError(f'{path}: [[actions]] number {number} must have a name, as in name = "Notify"')
        located = _own_file(name, path)
        if not named and names_file(located):
            _check_trusted(Path(file_and_class(located)[0]), path)
        specs.append(ActionSpec(located, table))
    return tuple(specs)


def _check_trusted(path: Path, found: Path) -> None:
    reason = untrusted(path)
    if reason:
        raise InvalidValueError(
            f"{found} was found by searching and names actions, but {reason}; to trust it, name it with --config "
            "(config_file= in code), else run from another folder"
        )


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The content of a TOML file, not validated.

    Args:
        path: The file.
        what: Its name in errors, ``"file of causes"``.

    Raises:
        MissingFileError: It does not exist; the message suggests a similar name.
        InvalidValueError: It is unreadable or not TOML.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{what} {path} {why_no_file(path)}{near_file(path)}")
    return _toml(path)


def _own_file(name: str, named_in: Path) -> str:
    located = seen_from(name, named_in.parent)
    file, _ = file_and_class(located)
    if file.endswith(".py") and not Path(file).is_file():
        raise MissingFileError(
            f'{named_in}: there is no action file "{file_and_class(name)[0]}" in {os.path.dirname(file)}'
            f"{near_file(Path(file))}; a relative path begins at the folder of {named_in.name}"
        )
    return located


def _nearest(folder: Path, home: Path) -> Path | None:
    for place in (folder, *folder.parents):
        if (place / FILE_NAME).is_file():
            return place / FILE_NAME
        if place == home or (place / ".git").exists():
            return None
    return None


def _toml(path: Path) -> dict[str, Any]:
    # Imported here, because most runs have no such file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    settings: dict[str, Any] = _parsed(path, tomllib.loads, "TOML")
    return settings


def _parsed(path: Path, parse: Callable[[str], Any], language: str) -> Any:
    """The parsed content of a file.

    Raises:
        InvalidValueError: It is unreadable or in another language.
    """
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidValueError(f"{path}: is not valid {language}: {error}") from None
    except RecursionError:
        raise InvalidValueError(f"{path}: is not valid {language}: nested too deeply") from None
