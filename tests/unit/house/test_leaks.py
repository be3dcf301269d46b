"""The leak check finds each kind of leak, names it, and is silent when all was put back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leaks import differences, snapshot

Undo = Callable[[], object]


def leak_thread(_: Path) -> tuple[str, Undo]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    return "thread 'forgotten' is still running", lambda: (stop.set(), thread.join())


def leak_process(_: Path) -> tuple[str, Undo]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return f"process {process.pid} ", lambda: (process.kill(), process.wait())


def leak_file(tmp_path: Path) -> tuple[str, Undo]:
    file = (tmp_path / "open.txt").open("w")
    return f"file {tmp_path / 'open.txt'} is still open", file.close


def leak_module_hook(_: Path) -> tuple[str, Undo]:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    return "1 hook is still in torch.nn.modules.module._global_forward_hooks", handle.remove


def leak_optimizer_hook(_: Path) -> tuple[str, Undo]:
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    return "1 hook is still in torch.optim.optimizer._global_optimizer_pre_hooks", handle.remove


def leak_wrapped_function(_: Path) -> tuple[str, Undo]:
    original = F.cross_entropy
    F.cross_entropy = lambda *args, **kwargs: original(*args, **kwargs)
    return "torch.nn.functional.cross_entropy is still replaced", lambda: setattr(F, "cross_entropy", original)


def leak_wrapped_method(_: Path) -> tuple[str, Undo]:
    original = torch.Tensor.backward
    torch.Tensor.backward = lambda *args, **kwargs: original(*args, **kwargs)
    return "torch.Tensor.backward is still replaced", lambda: setattr(torch.Tensor, "backward", original)


def leak_finder(_: Path) -> tuple[str, Undo]:
    class Finder:
        pass

    finder = Finder()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    return "is still on sys.meta_path", lambda: sys.meta_path.remove(finder)  # type: ignore[arg-type]


def leak_path(tmp_path: Path) -> tuple[str, Undo]:
    sys.path.append(str(tmp_path))
    return f"{tmp_path} is still on sys.path", lambda: sys.path.remove(str(tmp_path))


def leak_variable(_: Path) -> tuple[str, Undo]:
    os.environ["WATCHGLASS_SESSION"] = "{}"
    return "environment variable WATCHGLASS_SESSION is still '{}', not None", lambda: os.environ.pop(
        "WATCHGLASS_SESSION"
    )


def leak_handler(_: Path) -> tuple[str, Undo]:
    original = signal.signal(signal.SIGTERM, lambda *_: None)
    return "the handler of SIGTERM is still", lambda: signal.signal(signal.SIGTERM, original)


def leak_folder(tmp_path: Path) -> tuple[str, Undo]:
    original = os.getcwd()
    os.chdir(tmp_path)
    return f"the working directory is still {tmp_path}", lambda: os.chdir(original)


LEAKS = [value for name, value in sorted(globals().items()) if name.startswith("leak_")]


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_names_each_leak_and_is_silent_once_it_is_mended(
    leak: Callable[[Path], tuple[str, Undo]], tmp_path: Path
) -> None:
    before = snapshot(tmp_path)
    sentence, undo = leak(tmp_path)
    try:
        (found,) = differences(before, tmp_path, patience_s=0.05)
        assert sentence in found
    finally:
        undo()
    assert differences(before, tmp_path) == []


def test_waits_for_a_thread_that_was_asked_to_end(tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    threading.Timer(0.2, lambda: None).start()
    assert differences(before, tmp_path) == []


def test_what_importing_third_parties_sets_is_no_leak(tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    with patch.dict(os.environ, KMP_INIT_AT_FORK="FALSE"):
        assert differences(before, tmp_path) == []


def test_a_leaking_test_fails(repository: Path, tmp_path: Path) -> None:
    """The autouse fixture is really in use: a session of its own with our conftest fails on a leak, and only there."""
    (tmp_path / "test_two.py").write_text(
        "import os\n"
        "def test_leaks():\n    os.environ['LEFT_BEHIND'] = '1'\n"
        "def test_clean(run_path):\n    assert not run_path.exists()\n"
    )
    # A folder of its own: pytest would remove those of earlier sessions, which can take minutes.
    folders = ["--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "base")]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-c", os.devnull, *folders]
    environment = {**os.environ, "PYTHONPATH": str(repository / "tests")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "conftest", str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "2 passed, 1 error" in ended.stdout, ended.stdout + ended.stderr
    assert "environment variable LEFT_BEHIND is still '1'" in ended.stdout
