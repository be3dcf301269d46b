"""The text with which a script exits, as the interpreter prints it."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from watchglass.capture.exit_text import ExitText

SCRIPT = """
import atexit, sys
from watchglass.capture.exit_text import ExitText
text = ExitText()
text.open()
atexit.register(lambda: print(repr(text.found)))
print("a line of the script", file=sys.stderr)
sys.stderr.write("and another\\n")
"""


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("sys.exit('no data')", "no data"),
        ("raise SystemExit('no data')", "no data"),
        ("exit('no data')", "no data"),
        ("sys.exit(ValueError('two\\nlines'))", "two\nlines"),
        ("sys.exit('')", ""),
        ("sys.exit(3)", None),
        ("sys.exit()", None),
        ("raise ValueError('not an exit')", None),
        ("text.close(); sys.exit('no data')", None),
    ],
)
def test_only_the_text_of_an_exit_is_found(end: str, found: str | None) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT + end], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{found!r}\n"
    assert done.stderr.startswith("a line of the script\nand another\n")


class Unwilling:
    """A stream of a script that takes no attributes, and whose ``write`` returns nothing."""

    def __init__(self) -> None:
        self.__dict__["lines"] = []

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(name)

    def write(self, text: str) -> None:
        self.__dict__["lines"].append(text)


def test_a_stream_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stderr", stream)
    text, before = ExitText(), dict(vars(stream))
    text.open()
    text.open()
    assert sys.stderr.write("four") == 4
    text.close()
    text.close()
    assert dict(vars(stream)) == before
    assert text.found is None


def test_a_stream_that_cannot_be_listened_to_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ExitText()
    for stream in (None, Unwilling(), object()):
        monkeypatch.setattr(sys, "stderr", stream)
        before = dict(getattr(stream, "__dict__", {}))
        text.open()
        assert sys.stderr is stream
        assert dict(getattr(stream, "__dict__", {})) == before
        text.close()
    assert text.found is None
