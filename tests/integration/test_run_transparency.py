"""``watchglass run`` runs a script as python does: nothing it can see or say differs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from waiting import PATIENCE_S, until
from watchglass.errors import EXIT_STOPPED
from watchglass.store import layout, open_store

pytestmark = pytest.mark.slow

PROBE = """
import os, sys
print(sys.argv, __name__, os.path.basename(__file__), __package__, __spec__ and __spec__.name, __doc__)
print(os.getcwd() == os.path.realpath("."), sys.path[0], len(sys.path), sys.flags, sys.warnoptions, sys._xoptions)
print([entry for entry in sys.path if "watchglass" in entry and "bootstrap" in entry], "sitecustomize" in sys.modules)
print(sorted(set(globals()) - {"os", "sys"}), sys.modules["__main__"].__dict__ is globals())
print(sys.stdin.read(), end="")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "work").mkdir()
    yield tmp_path / "work"
    # Whatever a test did, nothing it started may be left.
    until(lambda: not processes_in(tmp_path / "work"))


def processes_in(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder.resolve()):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WATCHGLASS", "PYTHONPATH"))}
    return {**clean, **more}


def watched(*options: str, flags: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *flags, "-m", "watchglass", "run", "--evaluator=none", "--quiet", *options]


def plain(*words: str, flags: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *flags, *words]


def outcome(command: Sequence[str], folder: Path, stdin: str = "", **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, text=True, env=environment(**env), timeout=PATIENCE_S
    )
    return done.returncode, done.stdout, done.stderr


def write(folder: Path, name: str, text: str) -> str:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return name


@pytest.mark.parametrize("flags", [[], ["-u"], ["-X", "dev", "-W", "error", "-O"], ["-B", "-Xutf8"]])
def test_script_sees_what_it_sees_under_python(folder: Path, flags: list[str]) -> None:
    script = write(folder, "train.py", f'"""Doc."""\n{PROBE}')
    arguments = [script, "--run", "x", "-m", "y", "--", "--help", ""]
    expected = outcome(plain(*arguments, flags=flags), folder, "some\ninput")
    assert expected[0] == 0
    assert outcome(watched(*arguments, flags=flags), folder, "some\ninput") == expected


def test_module_sees_what_it_sees_under_python(folder: Path) -> None:
    write(folder, "pkg/__init__.py", "")
    write(folder, "pkg/train.py", PROBE)
    arguments = ["-m", "pkg.train", "--quiet", "-m", "z"]
    expected = outcome(plain(*arguments), folder)
    assert expected[0] == 0
    assert outcome(watched(*arguments), folder) == expected
    assert outcome(watched("-mpkg.train", "--quiet", "-m", "z"), folder) == expected


def installed_editable(project: Path, site: Path) -> str:
    """Install the package ``mine`` of a project editable, as pip does; returns PYTHONPATH for a process that has it."""
    write(project, "sources/__init__.py", "")
    write(project, "sources/__main__.py", PROBE)
    write(project, "sources/train.py", PROBE)
    # Where the folder has another name than the package, only a finder of its own finds it.
    settings = '[project]\nname = "mine"\nversion = "1"\n[tool.setuptools]\npackages = ["mine"]\n'
    write(project, "pyproject.toml", f'{settings}package-dir = {{ mine = "sources" }}\n')
    build = "import sys, setuptools.build_meta as build; print(build.build_editable(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(site)], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(site.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    write(site, "customized/sitecustomize.py", f"import site; site.addsitedir({str(site)!r})")
    return str(site / "customized")


def test_a_package_that_is_installed_editable_runs_as_a_module(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    python_path = installed_editable(tmp_path / "project", tmp_path / "site")
    for module in ("mine", "mine.train"):
        expected = outcome(plain("-m", module, "-x"), folder, PYTHONPATH=python_path)
        assert expected[0] == 0
        assert f"-x'] __main__ {'__main__' if module == 'mine' else 'train'}.py mine" in expected[1]
        assert outcome(watched("-m", module, "-x"), folder, PYTHONPATH=python_path) == expected


def test_packages_of_an_archive_and_of_a_namespace_run_as_modules(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
        archive.writestr("zipped/__main__.py", PROBE)
    write(folder, "namespace/part/train.py", PROBE)
    for module in ("zipped", "namespace.part.train"):
        expected = outcome(plain("-m", module), folder, PYTHONPATH=str(tmp_path / "packed.zip"))
        assert expected[0] == 0
        assert outcome(watched("-m", module), folder, PYTHONPATH=str(tmp_path / "packed.zip")) == expected


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('mine')",
        "import sys; sys.exit(7)",
        "import sys; sys.exit('said so')",
        "raise SystemExit",
        "import missing_module",
        "def broken(:",
        "import atexit; atexit.register(print, 'last words'); 1/0",
        "import os; os._exit(9)",
        f"raise SystemExit({EXIT_STOPPED})",
    ],
)
def test_exit_code_and_exceptions_are_the_scripts(folder: Path, body: str) -> None:
    script = write(folder, "train.py", body)
    assert outcome(watched(script), folder) == outcome(plain(script), folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_death_by_signal_is_reported_as_a_shell_does(folder: Path, number: signal.Signals) -> None:
    script = write(folder, "train.py", f"import os; os.kill(os.getpid(), {int(number)})")
    assert outcome(watched(script), folder)[0] == 128 + number


def test_script_in_another_folder_and_folder_as_script(folder: Path) -> None:
    write(folder, "sub/train.py", PROBE)
    write(folder, "app/__main__.py", PROBE)
    for script in ("sub/train.py", "app"):
        assert outcome(watched(script), folder) == outcome(plain(script), folder)


def test_an_existing_sitecustomize_still_runs(folder: Path) -> None:
    write(folder, "site/sitecustomize.py", "import sys; sys.was_here = 1; print('customized', __file__, flush=True)")
    script = write(folder, "train.py", "import sys, sitecustomize; print(sys.was_here, sitecustomize.__file__)")
    expected = outcome(plain(script), folder, PYTHONPATH="site")
    assert "customized" in expected[1]
    seen = outcome(watched(script), folder, PYTHONPATH="site")
    customized, said = expected[1].splitlines()
    assert seen == (0, f"{customized}\n{customized}\n{said}\n", "")  # once for the launcher, once for the script
    write(folder, "site/sitecustomize.py", "1/0")
    write(folder, "train.py", "print('went on')")
    _, out, complaint = outcome(plain(script), folder, PYTHONPATH="site")
    assert "ZeroDivisionError: division by zero" in complaint
    assert outcome(watched(script), folder, PYTHONPATH="site") == (0, out, complaint * 2)


def test_without_an_existing_one_there_is_none(folder: Path) -> None:
    script = write(folder, "train.py", "import sitecustomize")
    assert outcome(watched(script), folder) == outcome(plain(script), folder)


def test_pythonpath_keeps_its_entries_and_reaches_children(folder: Path) -> None:
    write(folder, "lib/mine.py", "print('mine')")
    body = (
        "import mine, os, subprocess, sys\n"
        "first, *rest = os.environ['PYTHONPATH'].split(os.pathsep)\n"
        "print(first.endswith('bootstrap'), rest)\n"
        "subprocess.run([sys.executable, '-c', 'import mine, sys; print(type(sys.meta_path[0]).__name__)'])\n"
    )
    script = write(folder, "train.py", body)
    status, out, err = outcome(watched(script), folder, PYTHONPATH="lib", PYTHONUNBUFFERED="1")
    assert (status, err) == (0, "")
    assert out.splitlines() == ["mine", "True ['lib']", "mine", "_FrameworkFinder"]


def test_a_framework_is_imported_as_ever_and_the_session_notified(folder: Path) -> None:
    write(
        folder, "torch.py", "import sys\nprint('torch', type(__spec__.loader).__name__, __loader__ is __spec__.loader)"
    )
    body = "import sys\nbefore = len(sys.meta_path)\nimport torch\nprint(before - len(sys.meta_path), torch.__file__)"
    script = write(folder, "train.py", body)
    status, out, _ = outcome(watched(script), folder)
    assert status == 0
    # The finder stays for the loops around PyTorch, which may be imported yet.
    assert out.splitlines() == ["torch SourceFileLoader True", f"0 {folder.resolve() / 'torch.py'}"]


@pytest.mark.parametrize(("options", "env"), [(["--no-capture"], {}), ([], {"WATCHGLASS": "0"})])
def test_opted_out_the_script_runs_untouched(folder: Path, options: list[str], env: dict[str, str]) -> None:
    body = "import os, sys; print(sys.argv, sys.meta_path, os.environ.get('PYTHONPATH'), os.environ['WATCHGLASS'])"
    script = write(folder, "train.py", body + "; print(os.getppid())")
    status, out, err = outcome(watched(*options, script, "a"), folder, **env)
    assert (status, err) == (0, "")
    assert "_FrameworkFinder" not in out
    assert "None 0" in out
    # The process is the script's: no process of ours stands between it and the starting process.
    assert out.splitlines()[1] == str(os.getpid())
    assert sorted(entry.name for entry in folder.iterdir()) == ["train.py"]


SLEEPER = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())  # print may be what it interrupts
    if number != signal.SIGUSR1:
        sys.exit(5)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, note)
print("ready", os.getpid(), flush=True)
time.sleep(600)
"""


def start(folder: Path, script: str = SLEEPER, **options: Any) -> tuple[subprocess.Popen[str], int]:
    """A watched script that has said "ready" and its process id."""
    write(folder, "train.py", script)
    process = subprocess.Popen(
        watched("train.py"), cwd=folder, stdout=subprocess.PIPE, text=True, **{"env": environment(), **options}
    )
    assert process.stdout is not None
    ready, pid = process.stdout.readline().split()
    assert ready == "ready"
    return process, int(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_launcher_reaches_the_script_once(folder: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup, and what is ignored is not passed on")
    process, _ = start(folder)
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert out == f"got {number.name}\n"
    assert process.returncode == 5


def test_torchrun_signals_the_whole_group_and_the_script_gets_it_once(folder: Path) -> None:
    body = """
import os, signal, time
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
print("ready", os.getpid(), flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)
print(len(got))
"""
    elastic = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    process, _ = start(folder, body, env=environment(**elastic), start_new_session=True)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[0] == "1\n"


def test_a_signal_that_the_script_survives_leaves_it_running(folder: Path) -> None:
    process, pid = start(folder)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    assert process.stdout.readline() == "got SIGUSR1\n"
    assert process.poll() is None
    os.kill(pid, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    process.stdout.close()


def test_ctrl_c_in_a_terminal_is_the_scripts_alone(folder: Path) -> None:
    body = """
import time
caught = 0
while caught < 2:
    try:
        print(f"caught {caught}", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        caught += 1
time.sleep(0.3)
print("saved", caught, flush=True)
"""
    write(folder, "train.py", body)
    pid, terminal = os.forkpty()
    if pid == 0:
        try:
            os.chdir(folder)
            os.execve(sys.executable, watched("train.py"), environment())
        finally:
            os._exit(99)
    for expected in ("caught 0", "caught 1"):
        read_until(terminal, expected)
        os.write(terminal, b"\x03")
    seen = read_until(terminal, "saved 2")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "Traceback" not in seen


def read_until(terminal: int, text: str) -> str:
    seen = ""
    while text not in seen:
        try:
            seen += os.read(terminal, 4096).decode()
        except OSError:  # how a terminal says end of file
            raise AssertionError(f"ended without {text!r}: {seen}") from None
    return seen


def test_ignored_signals_stay_ignored(folder: Path) -> None:
    body = "import signal; print('ready', 0, flush=True); print(signal.getsignal(signal.SIGHUP).name)"
    write(folder, "train.py", body)
    done = subprocess.run(
        ["nohup", *watched("train.py")], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "SIG_IGN"


def test_signals_are_not_blocked_in_the_script(folder: Path) -> None:
    script = write(folder, "train.py", "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    assert outcome(watched(script), folder)[1] == "set()\n"


def test_a_killed_launcher_takes_the_script_with_it(folder: Path) -> None:
    process, pid = start(folder)
    process.kill()
    process.wait(PATIENCE_S)
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert process.stdout is not None
    process.stdout.close()


def test_death_by_the_stop_protocol_counts_as_stopped(folder: Path) -> None:
    write(folder, "train.py", "print('ready', __import__('os').getpid(), flush=True); __import__('time').sleep(600)")
    process, pid = start(folder, (folder / "train.py").read_text())
    (run,) = (folder / "runs").iterdir()
    open_store(str(run)).write(layout.control_commit("stop", 0), b"{}")
    os.kill(pid, signal.SIGTERM)
    assert process.wait(PATIENCE_S) == EXIT_STOPPED
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
def test_closed_standard_streams_change_no_exit_status(tmp_path: Path, closed: str) -> None:
    script = "import sys\nsys.exit(7 if None in (sys.stdout, sys.stderr) else 8)\n"
    (tmp_path / "script.py").write_text(script)
    command = f"{sys.executable} -m watchglass run --run here script.py {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=120, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == 7
