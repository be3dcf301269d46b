"""``watchglass top`` on a terminal: it draws the run, and a key ends it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from waiting import PATIENCE_S
from watchglass.testing import Step, build_run


def read_until(terminal: int, text: bytes) -> bytes:
    """What is drawn until a text has come."""
    drawn, until_s = b"", time.monotonic() + PATIENCE_S
    while text not in drawn and time.monotonic() < until_s:
        if select.select([terminal], [], [], 0.2)[0]:
            drawn += os.read(terminal, 65536)
    return drawn


@pytest.mark.slow
def test_it_draws_the_run_until_q_is_pressed(tmp_path: Path) -> None:
    build_run(tmp_path / "run", [Step({"loss": 1.0 / (n + 1)}) for n in range(8)])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-m", "watchglass", "top", "run"]
    environ = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    try:
        assert b"loss 0.125 at step 7" in read_until(ours, b"at step 7")
        os.write(ours, b"q")
        read_until(ours, b"\x1b[?1049l")  # the terminal is as it was
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
