"""Settings of a training from a file: ``watchglass.toml``, or the hook configuration of SageMaker Debugger.

Read by the launcher and by :func:`watchglass.watch`, before a training, and never by what captures it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchglass.config import environment
from watchglass.config.evaluation import ActionSpec
from watchglass.config.hook_json import read_hook_json
from watchglass.config.parameters import ParameterError, check_names
from watchglass.config.plugins import file_and_class, names_file, seen_from
from watchglass.config.regular_files import near_file, read_regular, why_no_file
from watchglass.config.session import SETTINGS, SessionConfig
from watchglass.config.sources import Layer
from watchglass.config.trust import untrusted
from watchglass.errors import InvalidValueError, MissingFileError

#: Name of the file that is looked for.
FILE_NAME = "watchglass.toml"
#: A file of settings or causes is shorter than this.
_MOST_BYTES = 16 << 20


def find_file(named: Any = None) -> Path | None:
    """The configuration file that holds here, None where there is none.

    It is the one that is named, else the one that ``SMDEBUG_CONFIG_FILE_PATH`` names, else the nearest
    ``watchglass.toml`` in the working directory and the folders above it, up to the root of the repository or the home
    directory.

    Args:
        named: A path, None where none was named.

    Raises:
        InvalidValueError: What is named is no path.
        MissingFileError: The one that is named is not there.
    """
    if named is None:
        named = environment.hook_configuration()
        if named is None:
            return _nearest(Path.cwd())
        source = f"configuration file {named}, which {environment.HOOK_CONFIGURATION} names,"
    elif not isinstance(named, (str, os.PathLike)) or not os.fspath(named):
        raise InvalidValueError(f"the configuration file must be a path but got {named!r}")
    else:
        source = f"configuration file {os.fspath(named)}"
    path = Path(named)
    if not path.is_file():
        raise MissingFileError(f"{source} {why_no_file(path)}{near_file(path)}")
    return path


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Fields of :class:`SessionConfig` that a file sets, each of them valid.

    Args:
        path: A TOML file, or with the suffix ``.json`` a hook configuration of SageMaker Debugger.

    Raises:
        InvalidValueError: Something in it cannot be; the message names file and key.
    """
    path = Path(path)
    try:
        if path.suffix.lower() == ".json":
            return read_hook_json(_parsed(path, json.loads, "JSON"))
        settings = _toml(path)
        settings.pop("actions", None)  # which are the evaluator's, see read_actions
        check_names(settings, SETTINGS, FILE_NAME)
        SessionConfig(run="", **settings)
    except ParameterError as error:
        raise InvalidValueError(f"{path}: {error.name} {error.reason}") from None
    return settings


def file_layer(path: Path | None) -> Layer:
    """The settings of a file as one source of several; none where there is no file. Raises as :func:`read_file`."""
    if path is None:
        return Layer({})
    return Layer(read_file(path), str(path), lambda name: f"{path}: {name}")


def read_actions(path: str | os.PathLike[str], *, named: bool) -> tuple[ActionSpec, ...]:
    """What the tables ``[[actions]]`` of a file name; none for a hook configuration of SageMaker Debugger.

    A file of a user's own actions that is named there is found from the folder of the file that names it.

    Args:
        path: The file.
        named: Whether somebody named it. One that was found by searching may be anybody's who can write a folder above,
            and actions are programs and addresses.

    Raises:
        InvalidValueError: A table without a name, something that is no list of tables, or a file that was found by
            searching and that others than this user and root may have written.
        MissingFileError: A file of actions is not there.
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
            f"{found} was found by searching and names actions, but {reason}; if it is to be trusted, name it with "
            "--config (config_file= in code), else run from another folder"
        )


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """What a TOML file holds, unchecked.

    Args:
        path: The file.
        what: How errors call it, ``"file of causes"``.

    Raises:
        MissingFileError: It is not there; the message has the near name.
        InvalidValueError: It cannot be read, or is not TOML.
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
            f"{near_file(Path(file))}; its path begins at the folder of {named_in.name}, unless it is absolute"
        )
    return located


def _nearest(folder: Path) -> Path | None:
    home = Path.home()
    for place in (folder, *folder.parents):
        if (place / FILE_NAME).is_file():
            return place / FILE_NAME
        if place == home or (place / ".git").exists():
            return None
    return None


def _toml(path: Path) -> dict[str, Any]:
    # Imported here: most trainings have no such file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    settings: dict[str, Any] = _parsed(path, tomllib.loads, "TOML")
    return settings


def _parsed(path: Path, parse: Callable[[str], Any], language: str) -> Any:
    """What a file holds.

    Raises:
        InvalidValueError: It cannot be read, or holds something else.
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
        raise InvalidValueError(f"{path}: is not valid {language}: it is nested too deeply") from None
