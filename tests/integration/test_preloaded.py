"""What runs in a preloaded interpreter cannot tell it from the real one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from preloaded import Preloaded
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

Both = Callable[..., tuple["subprocess.CompletedProcess[str]", "subprocess.CompletedProcess[str]"]]


@pytest.fixture
def both(preloaded: Preloaded, tmp_path: Path) -> Both:
    """Runs the same in both interpreters."""

    def run(*words: str, **more: object) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
        environment = {**os.environ, **more.pop("environment", {})}  # type: ignore[dict-item]
        real, forked = (
            subprocess.run([python, *words], cwd=tmp_path, capture_output=True, text=True, env=environment, **more)  # type: ignore[call-overload]
            for python in (sys.executable, preloaded.python)
        )
        return real, forked

    return run


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import sys; print(sys.argv, __name__, __file__); print('err', file=sys.stderr)",
        "import os; print(os.getcwd(), os.environ['HERE'], os.environ.get('PYTHONPATH')); print(input())",
        "def f():\n    raise ValueError('no')\nf()",
        "import sys; sys.exit('message')",
        "import sys; sys.exit(7)",
        "raise KeyboardInterrupt",
        "import os; os.abort()",
        "import os; os._exit(5)",
        "import atexit; atexit.register(print, 'last'); print('first')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "import mine; print(mine.__file__)",
        "import sys; print('watchglass' in sys.modules, sys.path[0], sys.flags.isolated)",
        "import sys\nsys.excepthook = lambda *error: print('hook', error[0].__name__)\n1 / 0",
        "import signal; print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGPIPE))",
        "class A:\n    def __del__(self): print('gone')\na = A()",
        "1 +",
    ],
)
def test_a_script_sees_a_fresh_interpreter(both: Both, tmp_path: Path, text: str) -> None:
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").touch()
    environment = {"HERE": "here", "PYTHONPATH": str(tmp_path / "elsewhere")}
    real, forked = both("script.py", "a", "b c", environment=environment, input="line\n")
    assert outcome(forked) == outcome(real)


def test_text_and_modules_run_too(both: Both, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import sys; print(__name__, sys.argv[1:], __spec__.name)")
    for words in (("-c", "import sys; print(sys.argv, __name__)", "x"), ("-m", "module", "y"), ("-u", "module.py")):
        real, forked = both(*words)
        if words[0] != "-u":
            assert outcome(forked) == outcome(real)
        assert forked.returncode == real.returncode


def test_what_it_cannot_do_the_real_one_does(both: Both) -> None:
    real, forked = both("-W", "error", "-c", "import warnings; warnings.warn('now')")
    assert outcome(forked) == outcome(real)


def test_signals_reach_the_process_and_nothing_outlives_the_client(preloaded: Preloaded, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import os, signal, time
            signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"terminated\\n"))
            print(os.getpid(), flush=True)
            while True:
                time.sleep(0.01)
        """)
    )
    with subprocess.Popen([preloaded.python, script], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        client.send_signal(signal.SIGTERM)
        assert client.stdout.readline() == "terminated\n"
        client.kill()
    until(lambda: not psutil.pid_exists(pid))


def test_a_client_that_is_late_gets_both_answers_at_once(preloaded: Preloaded, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(preloaded.python.read_text())
    python.chmod(0o755)
    server = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory() as folder, server:  # a socket's name is short
        server.bind(f"{folder}/socket")
        server.listen()
        settings = {"python": sys.executable, "servers": {"": f"{folder}/socket"}}
        Path(f"{python}.json").write_text(json.dumps(settings))
        with subprocess.Popen([python, "-c", "pass"]) as client:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 20)
                connection.sendall(f"{os.getpid()}\n7\n".encode())
                assert client.wait(PATIENCE_S) == 7


def test_random_numbers_differ_from_process_to_process(preloaded: Preloaded) -> None:
    code = "import random; print(random.random())"
    first, second = (subprocess.run([preloaded.python, "-c", code], capture_output=True).stdout for _ in range(2))
    assert first != second
