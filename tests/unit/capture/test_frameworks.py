"""The table of frameworks: what it finds, what it imports, and how several share one hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import xgboost

import watchglass
from watchglass.capture import FRAMEWORKS, Arrays, Entry, Loop, Modules, loop, loop_of
from watchglass.capture.arrays import arrays_of
from watchglass.capture.frameworks import member
from watchglass.config import SessionConfig
from watchglass.errors import InvalidValueError
from watchglass.session import current_hook, on_framework_imported


@pytest.fixture
def launched(tmp_path: Path, launched_with: Callable[[SessionConfig], None]) -> Iterator[Path]:
    """A process that a launcher has started, which has imported PyTorch."""
    launched_with(SessionConfig(run=str(tmp_path / "run"), strict=True))
    on_framework_imported("torch")
    yield tmp_path / "run"
    hook = current_hook()
    if hook is not None:
        hook.close()


# Those around PyTorch, and large ones, are imported by tests in processes of their own.
@pytest.mark.parametrize("name", ["torch", "xgboost"])
def test_each_entry_names_members_of_the_contracts(name: str) -> None:
    entry = FRAMEWORKS[name]
    for home, contract in ((entry.loop, Loop), (entry.arrays, Arrays), (entry.modules, Modules)):
        assert not home or isinstance(member(home), contract)
        assert not home or member(home) is member(home)
    if entry.loop:
        assert loop(name).name == name
    assert all(list(FRAMEWORKS).index(below) < list(FRAMEWORKS).index(name) for below in entry.over)


def test_models_and_arrays_are_known_by_their_framework() -> None:
    model, tensor = torch.nn.Linear(2, 1), torch.ones(2)
    assert loop_of(model) is loop("torch")
    assert arrays_of(tensor) is member(FRAMEWORKS["torch"].arrays)
    for value in (tensor, 3, xgboost.XGBRegressor(), None):
        assert loop_of(value) is None
    for value in (model, 3, [1.0], np.ones(2), np.float32(1)):
        assert arrays_of(value) is arrays_of(np.ones(1))


def test_what_the_process_has_not_imported_is_not_asked() -> None:
    FRAMEWORKS["not_imported"] = Entry(loop="nowhere:Nothing")
    try:
        assert loop_of(torch.nn.Linear(2, 1)) is loop("torch")
        assert loop_of(3) is None
    finally:
        del FRAMEWORKS["not_imported"]


def test_watch_refuses_what_is_no_model() -> None:
    with pytest.raises(
        InvalidValueError, match=r"such as torch.nn.Module, but got Tensor; for boosted trees use watchglass.callback"
    ):
        watchglass.watch(torch.ones(2))


def test_frameworks_of_a_launched_process_share_its_hook(launched: Path) -> None:
    hook = current_hook()
    assert hook is not None
    assert watchglass.watch(torch.nn.Linear(2, 1), save_interval=1) is hook
    inputs = np.random.default_rng(0).normal(size=(20, 2))
    data = xgboost.DMatrix(inputs, inputs.sum(1))
    callback = watchglass.callback("xgboost")
    xgboost.train({"nthread": 1}, data, 3, evals=[(data, "train")], verbose_eval=False, callbacks=[callback])
    assert current_hook() is hook
    hook.close()
    run = watchglass.open_run(launched)
    assert run.steps() == [0, 1, 2]
    # XGBoost says what is kept of its models, also where the hook was made for another framework.
    assert len(run.tensor("feature_importance/gain").values()) == 3
