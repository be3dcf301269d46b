"""JSON in frames: any value is written, within bounds; each row that is read is checked.

Facts may hold any value, and the recorder must continue: values that JSON lacks become text. Frames may hold any row,
and the reader must continue: a malformed row costs only itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.records import number_to_json
from watchglass.store.encoding.frames import encode_frame

#: Largest JSON payload in bytes that is written and parsed; parsing takes some twenty times as much memory.
MAX_JSON = 32 << 20
#: Rows of one list that may make no sense; with more of them the whole list is refused.
MAX_BAD_ROWS = 1000
#: Deeper values are written as text.
_MAX_DEPTH = 32
#: Larger integers are written as text: no reader of JSON takes a number of any length.
_MAX_INTEGER = 1 << 1024

_T = TypeVar("_T")


def json_frame(kind: int, value: Any) -> bytes:
    """A frame of any value.

    Raises:
        InvalidValueError: It takes more than :data:`MAX_JSON`.
    """
    text = json.dumps(_plain(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # A lone surrogate in some script's string must not stop the recording.
    payload = text.encode(errors="replace")
    if len(payload) > MAX_JSON:
        raise InvalidValueError(
            f"a frame must hold at most {MAX_JSON} bytes of JSON but got {len(payload)}; write it in several frames"
        )
    return encode_frame(kind, payload)


def json_object(payload: bytes, what: str) -> dict[str, Any]:
    """The one object of a payload.

    Raises:
        DamagedDataError: It is something else.
    """
    return json_record(payload, what, dict)


def json_record(payload: bytes, what: str, parse: Callable[[dict[str, Any]], _T]) -> _T:
    """The one object of a payload, parsed.

    Raises:
        DamagedDataError: It is something else, or ``parse`` cannot make anything of it.
    """
    return _parsed(_from_json(payload, what), what, parse)


def json_records(
    payload: bytes, what: str, parse: Callable[[dict[str, Any]], _T], left_out: list[DamagedDataError] | None
) -> list[_T]:
    """The well-formed rows of a list, parsed.

    A malformed row, or one of a later release, must not cost its neighbours: it is omitted, and ``left_out`` gets the
    reason.

    Raises:
        DamagedDataError: It is no list, or more than :data:`MAX_BAD_ROWS` of its rows make no sense.
    """
    values = _from_json(payload, what)
    if not isinstance(values, list):
        raise DamagedDataError(f"{what} must be in a JSON list but got a {type(values).__name__}")
    found: list[_T] = []
    errors = left_out if left_out is not None else []
    for value in values:
        try:
            found.append(_parsed(value, what, parse))
        except DamagedDataError as error:
            errors.append(DamagedDataError(str(error)))  # without the traceback, which holds all that its frames do
            if len(errors) > MAX_BAD_ROWS:
                raise DamagedDataError(
                    f"{what} among {len(values)} is malformed more than {MAX_BAD_ROWS} times; the last: {error}"
                ) from error
    return found


def _plain(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """``value`` in JSON types. Never fails: facts come from anywhere, and the recorder must go on.

    Args:
        value: Anything.
        inside: Identities of the containers that hold it. What holds itself becomes text at once: by the time it is too
            deep, two such references have made billions of values.
    """
    plain = type(value)
    if plain is str or value is None or (plain is int and -_MAX_INTEGER < value < _MAX_INTEGER):
        return value
    if plain is float:
        return number_to_json(value)
    try:
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return value if -_MAX_INTEGER < value < _MAX_INTEGER else hex(value)
        if isinstance(value, float):
            return number_to_json(float(value))
        if len(inside) < _MAX_DEPTH and id(value) not in inside:
            within = (*inside, id(value))
            if plain is dict or isinstance(value, Mapping):
                return {key if type(key) is str else _text(key): _plain(item, within) for key, item in value.items()}
            if isinstance(value, np.ndarray):
                return _plain(value.tolist(), within)
            if isinstance(value, (list, tuple, set, frozenset)):
                return [_plain(item, within) for item in value]
    except Exception:
        return f"<{type(value).__name__}>"
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # a script's class may raise anything
        return f"<{type(value).__name__}>"


def _from_json(payload: bytes, what: str) -> Any:
    if len(payload) > MAX_JSON:
        raise DamagedDataError(f"{what} takes {len(payload)} bytes of JSON; at most {MAX_JSON} are read")
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise DamagedDataError(f"{what} is not JSON") from error


def _parsed(value: Any, what: str, parse: Callable[[dict[str, Any]], _T]) -> _T:
    if not isinstance(value, dict):
        raise DamagedDataError(f"{what} must be a JSON object but is a {type(value).__name__}")
    try:
        return parse(value)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DamagedDataError(
            f"{what} is malformed ({type(error).__name__}: {error}): {ascii(value)[:160]}"
        ) from error
