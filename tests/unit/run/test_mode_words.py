"""A mode is given as a member of Mode or as a word in any case, wherever a reader takes one."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.records import Mode
from watchglass.run import Run, Runs, Tensor, open_run, open_runs
from watchglass.testing import Step, build_run

READS: dict[str, Callable[[Path, Any], Any]] = {
    "steps": lambda path, mode: open_run(path).steps(mode),
    "global_step": lambda path, mode: open_run(path).global_step(1, mode),
    "step": lambda path, mode: open_run(path).step(1, mode).mode,
    "wait_for_steps": lambda path, mode: open_run(path).wait_for_steps(1, mode=mode, timeout_s=0),
    "tensor_names": lambda path, mode: open_run(path).tensor_names(mode=mode, step=1),
    "scalars": lambda path, mode: [each.tolist() for each in open_run(path).scalars("loss", mode)],
    "phases": lambda path, mode: open_run(path).phases(mode).mode,
    "statistics": lambda path, mode: open_run(path).statistics(mode=mode).to_arrow().to_pylist(),
    "stretches": lambda path, mode: open_run(path).stretches(mode),
    "compare": lambda path, mode: open_runs(path.parent).compare("loss", mode).to_arrow().to_pylist(),
    "Tensor.steps": lambda path, mode: tensor(path).steps(mode),
    "prev_steps": lambda path, mode: tensor(path).prev_steps(1, mode=mode),
    "shape": lambda path, mode: tensor(path).shape(1, mode),
    "value": lambda path, mode: open_run(path).tensor("loss").value(1, mode),
    "torch": lambda path, mode: open_run(path).tensor("loss").torch(1, mode).item(),
    "values": lambda path, mode: open_run(path).tensor("loss").values(mode),
    "reduction": lambda path, mode: tensor(path).reduction(1, "mean", mode),
    "reductions": lambda path, mode: [each.tolist() for each in tensor(path).reductions("mean", mode)],
    "histogram": lambda path, mode: tensor(path).histogram(1, mode).counts.tolist(),
    "histograms": lambda path, mode: list(tensor(path).histograms(mode)),
    "inactive_units": lambda path, mode: [each.tolist() for each in tensor(path).inactive_units(mode)],
    "quantiles": lambda path, mode: [each.tolist() for each in tensor(path).quantiles([0.5], mode)],
}


def tensor(path: Path) -> Tensor:
    return open_run(path).tensor("d.weight")


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    units = {"d.weight": np.array([True, False])}
    training = [Step({"loss": 1.0 - n / 10}, {"d.weight": np.full(2, n)}) for n in range(3)]
    evaluation = [Step({"loss": 5.0 + n}, {"d.weight": np.ones(2)}, units=units, mode=Mode.EVAL) for n in range(2)]
    return Path(build_run(tmp_path / "run", training + evaluation))


@pytest.mark.parametrize("word", ["eval", "EVAL", "Eval"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_word_reads_what_the_member_reads(read: Callable[[Path, Any], Any], word: str, run_path: Path) -> None:
    assert read(run_path, word) == read(run_path, Mode.EVAL)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_an_unknown_word_is_refused_with_the_words_that_exist(read: Callable[[Path, Any], Any], run_path: Path) -> None:
    with pytest.raises(InvalidValueError, match='"train", "eval", "predict" or "global" but got \'evaluation\''):
        read(run_path, "evaluation")


def test_every_public_reader_that_takes_a_mode_is_listed() -> None:
    taking = {
        name
        for owner in (Run, Runs, Tensor)
        for name, function in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") and "mode" in inspect.signature(function).parameters
    }
    assert taking <= {name.removeprefix("Tensor.") for name in READS}
