"""How a script ended, as far as only a whole process shows it: the text of its exit, and Ctrl-C."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys
from watchglass.capture.process.process_failure import ExitText
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


INTERRUPTED = """
import atexit, os, signal, sys, time
from collections import namedtuple
from watchglass.capture.process.process_failure import keep_interrupt
def end():
    namedtuple("Forgets", "the interrupt")
    keep_interrupt(sys.last_value)
atexit.register(end)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(10)
"""


def test_ctrl_c_ends_the_process_by_its_signal_whatever_runs_at_exit() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, check=False)
    assert ended.returncode == -2
