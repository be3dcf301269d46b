"""The text with which a script exits, as the interpreter prints it."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from typing import Any

from watchglass.capture.process.process_failure import ExitText


class Unwilling:
    """A stream of a script that takes no attributes, and whose ``write`` returns nothing."""

    def __init__(self) -> None:
        self.__dict__["lines"] = []

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(name)

    def write(self, text: str) -> None:
        self.__dict__["lines"].append(text)


def test_a_stream_is_left_as_it_was() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    text, before = ExitText(), dict(vars(stream))
    with redirect_stderr(stream):
        text.open()
        text.open()
        assert sys.stderr.write("four") == 4
        text.close()
        text.close()
    assert dict(vars(stream)) == before
    assert text.found is None


def test_a_stream_that_cannot_be_listened_to_is_let_be() -> None:
    text = ExitText()
    streams: list[Any] = [None, Unwilling(), object()]
    for stream in streams:
        before = dict(getattr(stream, "__dict__", {}))
        with redirect_stderr(stream):
            text.open()
            assert sys.stderr is stream
            assert dict(getattr(stream, "__dict__", {})) == before
            text.close()
    assert text.found is None
