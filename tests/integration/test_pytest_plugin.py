"""The pytest plugin and ``assert_trains_healthy``: in test suites of their own, as users write them."""

from __future__ import annotations

import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from command_line import training
from watchglass.errors import InvalidValueError, MissingFileError
from watchglass.run import open_run
from watchglass.session import current_hook
from watchglass.testing import assert_trains_healthy, build_run

pytest_plugins = ["pytester"]

TRAINING = """
import torch

def train(rate=0.05, steps=60, fail_at=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        if step == fail_at:
            raise ArithmeticError("the user's own check")
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def module(in_tmp_path: Path) -> Path:
    """A file with a function that trains, which imports PyTorch."""
    (in_tmp_path / "small_training.py").write_text(TRAINING)
    return in_tmp_path


def train(**options: object) -> None:
    runpy.run_path("small_training.py")["train"](**options)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_healthy_training_passes_and_leaves_nothing_behind(module: Path, tmp_path: Path) -> None:
    found = assert_trains_healthy(train, run=tmp_path / "run")
    assert (found.status, found.train_steps) == ("no issues found", 60)
    assert current_hook() is None
    run = open_run(tmp_path / "run")
    assert run.finished
    assert len(run.tensor("gradient/0.weight").steps()) == 60, "every step is captured"


def test_a_sick_training_fails_with_the_verdict_and_causes(module: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_trains_healthy(lambda: train(rate=50.0), run=tmp_path / "run")
    said = str(caught.value)
    assert said.startswith("the run is not healthy\n\n1 error, ")
    assert "learning rate is too high" in said
    assert "   try      " in said
    assert said.splitlines()[-1].startswith(f"run: {tmp_path / 'run'} (kept; ")
    assert open_run(tmp_path / "run").steps()


def test_a_temporary_run_is_removed_where_healthy_and_kept_where_not(module: Path, temporary: Path) -> None:
    assert_trains_healthy(train)
    assert list(temporary.glob("watchglass-*")) == []
    with pytest.raises(AssertionError, match="kept"):
        assert_trains_healthy(lambda: train(rate=50.0))
    (kept,) = temporary.glob("watchglass-*")
    assert open_run(kept / "run").steps()


def skipped() -> None:
    pytest.skip("not here")


@pytest.mark.parametrize(
    ("training", "raised"),
    [
        (lambda: train(fail_at=40), ArithmeticError), (skipped, pytest.skip.Exception),
        (lambda: None, AssertionError), (lambda: train(steps="many"), TypeError),
    ],
)  # fmt: skip
def test_a_temporary_run_that_no_message_names_is_removed(
    module: Path, temporary: Path, training: Callable[[], None], raised: type[BaseException]
) -> None:
    with pytest.raises(raised):
        assert_trains_healthy(training)
    assert list(temporary.glob("watchglass-*")) == []


def test_several_training_runs_in_one_process_are_separate_runs(module: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert assert_trains_healthy(train, run=tmp_path / name).train_steps == 60


def test_severity_and_rules_are_chosen(module: Path, tmp_path: Path) -> None:
    found = assert_trains_healthy(lambda: train(rate=50.0), run=tmp_path / "a", fail_on="never")
    assert found.findings
    found = assert_trains_healthy(lambda: train(rate=50.0), run=tmp_path / "b", rules=["DeadRelu", "Overfit"])
    assert [status.rule for status in found.statuses] == ["DeadRelu", "Overfit"]


def test_what_the_training_raises_goes_on_where_nothing_was_found(module: Path, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match="the user's own check"):
        assert_trains_healthy(lambda: train(fail_at=40), run=tmp_path / "run")
    assert current_hook() is None


def test_what_the_training_raises_is_the_cause_of_a_verdict(module: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="learning rate is too high") as caught:
        assert_trains_healthy(lambda: train(rate=50.0, fail_at=55), run=tmp_path / "run")
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_a_skipped_training_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception):
        assert_trains_healthy(lambda: pytest.skip("not here"), run=tmp_path / "run")


def test_something_that_does_not_train_is_no_healthy_training(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no training step was seen"):
        assert_trains_healthy(lambda: None, run=tmp_path / "run")


def test_a_training_run_that_could_not_be_watched_is_not_healthy(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch  # noqa: F401

    def fault(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("watchglass.capture.planning.plan.Plan.due", fault)
    with caplog.at_level(logging.CRITICAL, "watchglass"), pytest.raises(AssertionError, match="was switched off"):
        assert_trains_healthy(train, run=tmp_path / "run")


def test_a_run_is_evaluated(tmp_path: Path) -> None:
    healthy = build_run(tmp_path / "healthy", training(), modules={"fc": "Linear"})
    broken = build_run(tmp_path / "broken", training(broken_at=80), modules={"fc": "Linear"})
    killed = build_run(tmp_path / "killed", training(), modules={"fc": "Linear"}, status=None)
    assert assert_trains_healthy(healthy).status == "no issues found"
    assert assert_trains_healthy(open_run(healthy)).status == "no issues found"
    with pytest.raises(AssertionError, match=r"ExplodingTensor(.|\n)*run: .*broken"):
        assert_trains_healthy(Path(broken))
    with pytest.raises(AssertionError, match="the run could not be judged"):
        assert_trains_healthy(killed)
    assert assert_trains_healthy(killed, allow_unfinished=True).status == "failed"


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="a function that trains, but got int"):
        assert_trains_healthy(3)
    with pytest.raises(InvalidValueError, match="fail_on must be one of"):
        assert_trains_healthy(tmp_path, fail_on="info")
    with pytest.raises(InvalidValueError, match="save_interval needs a function that trains"):
        assert_trains_healthy(tmp_path, save_interval=5)
    with pytest.raises(MissingFileError):
        assert_trains_healthy(tmp_path / "nowhere")
    off = pytest.raises(InvalidValueError, match="WATCHGLASS=0 switches watching off")
    with patch.dict(os.environ, WATCHGLASS="0"), off:
        assert_trains_healthy(lambda: None)


BOOSTING = """
import numpy as np
import xgboost
import watchglass

def boost(rate=0.3):
    x = np.random.default_rng(0).normal(size=(200, 4))
    data = xgboost.DMatrix(x, x.sum(1))
    xgboost.train({"eta": rate, "nthread": 1}, data, 30, evals=[(data, "train")], verbose_eval=False,
                  callbacks=[watchglass.callback("xgboost")])
"""


def test_xgboost_is_watched_through_its_callback(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(BOOSTING, names)  # noqa: S102  the text above
    for name in ("a", "b"):
        assert assert_trains_healthy(names["boost"], run=tmp_path / name).train_steps == 30


# In a suite of its own


SUITE = """
import pytest
from small_training import train

def test_healthy(assert_trains_healthy):
    assert_trains_healthy(train)

def test_sick(assert_trains_healthy):
    assert_trains_healthy(lambda: train(rate=50.0))
"""


def suite(pytester: pytest.Pytester, *arguments: str, tests: str = SUITE) -> pytest.RunResult:
    """Runs a suite in a separate process, with warnings as errors."""
    pytester.makepyfile(small_training=TRAINING, test_it=tests)
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_suite_says_what_is_wrong_without_a_traceback_of_ours(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    result = suite(pytester, *arguments)
    result.assert_outcomes(passed=1, failed=1)
    said = result.stdout.str()
    assert "E   " in said
    assert "the run is not healthy" in said
    assert "learning rate is too high" in said
    for ours in ("healthy.py", "watched_call.py", "pytest_plugin.py"):
        assert ours not in said
    # In CI pytest tells the message a second time, in its summary.
    (kept,) = [line for line in said.splitlines() if line.startswith("E ") and "(kept; " in line]
    run = kept.partition("run: ")[2].partition(" (kept")[0]
    assert "test_sick0" in run
    assert open_run(run).steps()


@pytest.mark.slow
def test_a_suite_that_does_not_use_it_imports_nothing_of_it(pytester: pytest.Pytester) -> None:
    tests = """
        import sys

        def test_nothing():
            ours = {name for name in sys.modules if name.split(".")[0] == "watchglass"}
            of_the_plugin = {"watchglass.testing", "watchglass.testing.pytest_plugin"}
            assert ours == {"watchglass", "watchglass.lazy_imports", "watchglass.version"} | of_the_plugin
            assert not {"numpy", "torch", "pyarrow", "rich", "plotly"} & sys.modules.keys()
    """
    pytester.makepyfile(tests)
    # The plugin of jaxtyping, which Equinox installs, imports NumPy.
    environment = "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:jaxtyping"
    result = pytester.runpytest_subprocess("-W", "error", *environment)
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_pytorch_may_be_imported_by_the_training_itself(pytester: pytest.Pytester) -> None:
    tests = """
        import sys

        def test_late(assert_trains_healthy):
            assert "torch" not in sys.modules
            finders = list(sys.meta_path)

            def late():
                from small_training import train
                train()

            assert assert_trains_healthy(late).train_steps == 60
            assert [finder for finder in sys.meta_path if "watchglass" in type(finder).__module__] == []
    """
    suite(pytester, tests=tests).assert_outcomes(passed=1)


def test_the_entry_point_is_the_plugin(repository: Path) -> None:
    text = (repository / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nwatchglass = "watchglass.testing.pytest_plugin"\n' in text
    done = subprocess.run(
        [sys.executable, "-c", "import watchglass.testing.pytest_plugin, sys; print('numpy' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
