"""Fixtures for every test: nothing leaks, nothing depends on chance or on the environment that tests are started in."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest

from leaks import differences, snapshot
from preloaded import Preloaded

pytest_plugins = ("servers.fixtures", "places", "own_process", "retried")

# Found examples must not depend on the day; a slow machine is no failure.
hypothesis.settings.register_profile("watchglass", derandomize=True, deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("watchglass")

# Several tests run at once, each with its training runs: if their threads wait for each other on the same few cores,
# they cost far more than they bring. Children inherit this; set before anything imports a framework.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# PyTorch's compiler makes scalar code: to find out what the processor can do, it would compile for half a minute. It
# runs in the process that asks: a pool of compiling processes would outlive the tests.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# What JAX has compiled is kept, however short it took: many processes train one network.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test sets what it needs; whatever the caller's shell has is not its business. Children inherit this as well.
_FOREIGN = ("WATCHGLASS", "SMDEBUG_", "AWS_", "AZURE_", "GOOGLE_", "RAY_", "SLURM_", "OMPI_", "TORCHELASTIC_")
_FOREIGN_NAMES = {
    # How wide and how colourful output is; the rank that a launcher gave; proxies, which nothing on loopback is behind.
    "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "CLICOLOR", "CLICOLOR_FORCE", "GITHUB_ACTIONS",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
    # How Python runs: without files of bytecode each of a thousand processes compiles all of watchglass again.
    "PYTEST_ADDOPTS", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE",
}  # fmt: skip
for _name in [name for name in os.environ if name.startswith(_FOREIGN) or name.upper() in _FOREIGN_NAMES]:
    if not _name.startswith("WATCHGLASS_TEST_"):
        del os.environ[_name]


# The folder whose files take longest comes first, so that no worker is left alone with one of them at the end.
_LONGEST_FIRST = (
    "frameworks",
    "scripts",
    "integration",
    "faults",
    "fuzz",
    "docs",
    "properties",
    "conformance",
    "servers",
    "unit",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders in the order in which several workers end together."""
    order = {name: number for number, name in enumerate(_LONGEST_FIRST)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: order.get(os.path.relpath(item.path, tests).split(os.sep)[0], len(order)))


def pytest_configure(config: pytest.Config) -> None:
    """Let processes of JAX share what they compile, unless they are those of a file, which inherit it."""
    cache: pytest.Cache | None = getattr(config, "cache", None)
    if cache is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.mkdir("jax")))


def pytest_sessionstart() -> None:
    """Let no garbage collection examine what is imported and collected, over and over: it is large and stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of later garbage collections, too."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a thread, process, open file, hook, patch, handler or setting behind."""
    below = tmp_path_factory.getbasetemp()
    before = snapshot(below)
    yield
    left = differences(before, below)
    if left:
        pytest.fail("the test left something behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state, in whatever order and process it runs."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the global generator is what user code and frameworks draw from
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Where a test may write a run; not there yet."""
    return tmp_path / "run"


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder, which is also the working directory while it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What PyTorch's compiler has made for this run of the tests: its headers take longer than all else."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "inductor"


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest, compiler_cache: Path) -> Iterator[None]:
    """What PyTorch's compiler leaves behind when it is first used is not ours. Inductor's is for slow tests."""
    import torch

    here = [item for item in request.session.items if item.path == request.path]
    backend = "inductor" if any(item.get_closest_marker("slow") for item in here) else "eager"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiler_cache))
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def digits_script(repository: Path) -> Path:
    """The example's training script, which knows nothing of watchglass."""
    return repository / "examples" / "digits" / "train.py"


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    """An interpreter that has PyTorch and watchglass imported; its processes are forked from one."""
    with tempfile.TemporaryDirectory(prefix="watchglass-") as folder:
        interpreter = Preloaded(Path(folder))
        yield interpreter
        interpreter.close()


@pytest.fixture
def preloaded_python(preloaded: Preloaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sys.executable`` is the preloaded interpreter: what the test starts with it, it starts much sooner."""
    monkeypatch.setattr(sys, "executable", str(preloaded.python))


@pytest.fixture
def tensorboard_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard without TensorFlow, which it would import late: that takes seconds and sets environment variables."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
