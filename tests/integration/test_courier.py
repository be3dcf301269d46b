"""A delivery in a separate process: whatever a user's code does there, who started it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from waiting import PATIENCE_S, until
from watchglass.actions import Courier
from watchglass.config import ActionSpec, EvaluatorTiming
from watchglass.testing import FakeClock, delivered, example_event

Write = Callable[[str], ActionSpec]


@pytest.fixture
def action(tmp_path: Path) -> Write:
    """An action of a user's own, by the body of its ``act``."""

    def written(body: str) -> ActionSpec:
        path = tmp_path / "mine.py"
        head = "import os, subprocess, sys, time\nimport watchglass\n\n\nclass Mine(watchglass.Action):\n"
        head += (
            f'    """Mine."""\n\n    key: str = ""\n    place: str = {str(tmp_path)!r}\n\n    def act(self, event):\n'
        )
        path.write_text(head + textwrap.indent(textwrap.dedent(body), "        "))
        return ActionSpec(f"{path}:Mine")

    return written


def test_what_returns_is_done(action: Write) -> None:
    outcome = delivered(action("assert event.finding.step == 7"), example_event())
    assert outcome.done, outcome.reason


def test_what_raises_is_tried_again(action: Write) -> None:
    outcome = delivered(action("raise ConnectionError('no\\nroute')"), example_event())
    assert (outcome.done, outcome.again) == (False, True)
    assert outcome.reason == "ConnectionError: no route (mine.py, line 12)"


def test_undeliverable_is_not(action: Write) -> None:
    outcome = delivered(action("raise watchglass.UndeliverableError('no server answers')"), example_event())
    assert (outcome.done, outcome.again, outcome.reason) == (False, False, "no server answers")


def test_a_pause_that_is_asked_for_is_handed_on(action: Write) -> None:
    outcome = delivered(action("raise watchglass.DeliverLater('busy', 7.5)"), example_event())
    assert (outcome.done, outcome.again, outcome.after_s) == (False, True, 7.5)


def test_one_that_hangs_is_killed_with_all_it_has_started(action: Write, tmp_path: Path) -> None:
    spec = action("""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open(self.place + "/pid", "w").write(str(child.pid))
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))
        while True:
            time.sleep(1)
    """)
    clock = FakeClock()
    courier = Courier(spec, example_event(), PATIENCE_S, monotonic=clock)
    child = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    clock.advance(PATIENCE_S)
    outcome = until(courier.poll)
    assert outcome.reason == f"took longer than {PATIENCE_S:g} s and was ended"
    assert outcome.again
    assert not psutil.pid_exists(courier.pid)
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_one_that_cannot_be_killed_delays_no_other(action: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a process that waits for an unreachable file server."""
    courier = Courier(action("time.sleep(600)"), example_event(), 0.5, timing=EvaluatorTiming(death_s=0.05))
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda *_: None)
        outcome = until(courier.poll)
    process = psutil.Process(courier.pid)
    assert outcome.reason == "took longer than 0.5 s and was ended"
    assert process.is_running()
    process.kill()
    courier._process.wait()


def test_what_it_leaves_running_ends_with_it(action: Write, tmp_path: Path) -> None:
    spec = action("""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open(self.place + "/pid", "w").write(str(child.pid))
    """)
    assert delivered(spec, example_event()).done
    child = int((tmp_path / "pid").read_text())
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_gigabytes_of_output_are_not_an_answer(action: Write) -> None:
    spec = action("""
        line = b'{"done": false, "reason": "printed"}\\n' * 100_000
        for _ in range(300):
            os.write(1, line)
            os.write(2, line)
        print('{"done": false}')
    """)
    assert delivered(spec, example_event()).done


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os._exit(3)", "its process ended with exit status 3 and no answer"),
        ("os.kill(os.getpid(), 9)", "its process was ended by SIGKILL"),
        ("sys.exit(4)", "its process ended with exit status 4 and no answer"),
        ("os.fork()", ""),
    ],
)
def test_a_process_that_ends_in_its_own_way_is_reported(action: Write, body: str, reason: str) -> None:
    outcome = delivered(action(body), example_event())
    assert outcome.done == (not reason)
    assert outcome.reason == reason


def test_an_answer_that_is_none_is_a_failure(action: Write) -> None:
    spec = action("""
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and os.path.exists(f"/proc/self/fd/{number}"):
                os.write(number, b"rubbish\\n")
    """)
    outcome = delivered(spec, example_event())
    assert outcome.reason == "gave an invalid answer"


def test_a_file_that_is_deleted_meanwhile_is_reported(action: Write, tmp_path: Path) -> None:
    spec = action("pass")
    (tmp_path / "mine.py").unlink()
    outcome = delivered(spec, example_event())
    assert (outcome.done, outcome.again) == (False, False)
    assert "there is no action file" in outcome.reason


def test_a_large_event_that_is_not_read_delays_no_other(action: Write, tmp_path: Path) -> None:
    """A pipe takes 64 KiB; who starts the process goes on with its work meanwhile."""
    event = example_event(message="x" * 3_000_000)
    go = tmp_path / "go"
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    courier = Courier(action("assert len(event.message) == 3_000_000"), event, PATIENCE_S, environ)
    assert courier.poll() is None
    go.touch()
    assert until(courier.poll).done


def test_nothing_of_an_action_is_in_a_command_line(action: Write) -> None:
    spec = ActionSpec(action("time.sleep(30)").name, {"key": "geheim-1234"})
    courier = Courier(spec, example_event(), 30.0)
    try:
        words = until(psutil.Process(courier.pid).cmdline)
        assert words[1:3] == ["-m", "watchglass.actions"]
        assert not any("geheim" in word or "mine.py" in word for word in words)
    finally:
        courier.end()


def test_variables_are_read_at_delivery_and_are_in_no_error(action: Write) -> None:
    spec = ActionSpec(action("raise ValueError('refused: ' + self.key)").name, {"key": "$DOOR_KEY"})
    outcome = delivered(spec, example_event(), environ={**os.environ, "DOOR_KEY": "geheim 1234"})
    assert outcome.reason == "ValueError: refused: $DOOR_KEY (mine.py, line 12)"
    outcome = delivered(spec, example_event())
    assert outcome.reason == "Mine: the environment variable DOOR_KEY is not set; set it, or remove $DOOR_KEY"
    assert not outcome.again


def test_no_part_of_an_address_is_in_an_error_either(action: Write) -> None:
    spec = ActionSpec(
        action("raise OSError('no answer from example.org: /hooks/T00000/geheim-1234')").name, {"key": "$HOOK"}
    )
    hook = "https://example.org/hooks/T00000/geheim-1234"
    outcome = delivered(spec, example_event(), environ={**os.environ, "HOOK": hook})
    assert outcome.reason == "OSError: no answer from example.org: /$HOOK/$HOOK/$HOOK (mine.py, line 12)"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts the working directory first")
def test_a_file_in_the_working_directory_takes_no_modules_place(action: Write, tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text("raise SystemExit(3)")
    (tmp_path / "queue.py").write_text("raise SystemExit(3)")
    spec = action("pass")
    code = (
        "from watchglass.config import ActionSpec; from watchglass.testing import FakeClock, delivered, example_event; "
        f"outcome = delivered(ActionSpec({spec.name!r}), example_event()); assert outcome.done, outcome.reason"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "deliver.py").write_text(code)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, f"{tmp_path}/elsewhere/deliver.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_input_that_it_asks_for_is_empty(action: Write) -> None:
    assert delivered(action("assert sys.stdin.read() == ''"), example_event()).done


def test_it_ends_by_itself_if_no_process_is_left_to_end_it(action: Write) -> None:
    courier = Courier(action("while True: time.sleep(1)"), example_event(), 0.5)
    process = psutil.Process(courier.pid)
    assert until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    courier.end()
