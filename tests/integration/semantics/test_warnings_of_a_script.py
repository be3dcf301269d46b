"""Warnings that point at their caller point at the script's line, and come as often as without us."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from train_twice import EVERYTHING
from watchglass.capture.pytorch import public_calls as calls
from watchglass.config import FACTS

Seen = list[tuple[str, str, int]]


def warned(path: Path | None, script: Callable[[nn.Module], None], **settings: Any) -> Seen:
    """What a script warns of and where, each place once, as Python shows it by default."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    globals().pop("__warningregistry__", None)
    hook = None if path is None else watchglass.watch(model, run=path, strict=True, **settings)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            script(model)
    finally:
        if hook is not None:
            hook.close()
    return [(str(one.message), one.filename, one.lineno) for one in caught]


def training(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    for step in range(24):
        if not step:
            scheduler.step(0)
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(3, 4)), torch.ones(3)).backward()
        F.l1_loss(model(torch.ones(3, 4)), torch.ones(3)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("interval", [1, 1000])
def test_pytorch_s_warnings_are_those_of_a_bare_run(tmp_path: Path, interval: int) -> None:
    bare = warned(None, training)
    watched = warned(tmp_path / "run", training, save_interval=interval, collections=EVERYTHING)
    assert watched == bare
    here = [place for place in bare if place[1] == __file__]
    assert len(here) >= 2


def wrapped_functions() -> list[tuple[Any, str]]:
    """Every function that watching wraps, by owner and name: those of which a bare process has another."""
    model = nn.Linear(4, 1)
    owners: list[Any] = [torch, torch.autograd, torch.jit, F, nn.utils, nn.utils.clip_grad, nn.Module]
    owners += [torch.optim.Optimizer, torch.amp.GradScaler, torch.utils.data.DataLoader]
    owners += [each for each in vars(torch.optim.lr_scheduler).values() if inspect.isclass(each)]
    before = {(id(owner), name): value for owner in owners for name, value in list(vars(owner).items())}
    with watchglass.watch(model, run="unused", strict=True, collections=EVERYTHING, facts=tuple(FACTS)):
        return [
            (owner, name)
            for owner in owners
            for name, value in list(vars(owner).items())
            if before.get((id(owner), name)) is not value and callable(value)
        ]


def test_no_wrapper_counts_as_a_caller(monkeypatch: pytest.MonkeyPatch, in_tmp_path: Path) -> None:
    found = wrapped_functions()
    names = {name for _, name in found}
    assert {"backward", "mse_loss", "step", "zero_grad", "scale", "__iter__", "clip_grad_norm_", "compile"} <= names

    def original(*args: Any, **kwargs: Any) -> dict[str, Any]:
        warnings.warn("from inside", stacklevel=2)
        return {}

    for owner, name in found:
        model = nn.Linear(4, 1)  # calls functions that are wrapped
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, original)
            settings = {"collections": EVERYTHING, "facts": tuple(FACTS)}
            with watchglass.watch(model, run=in_tmp_path / "run", strict=True, **settings):
                wrapper = getattr(owner, name)
                if wrapper is original:
                    continue  # of a class whose parent is wrapped
                with pytest.warns(UserWarning, match="from inside") as caught:
                    wrapper(model, model)
                assert caught[0].filename == __file__, f"{owner}.{name}"
        assert not calls.EVERY_BACKWARD.before


def test_a_traceback_names_the_function_that_was_called(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    with (
        watchglass.watch(model, run=tmp_path / "run", strict=True),
        pytest.raises(ValueError, match="batch_size") as failure,
    ):
        F.cross_entropy(model(torch.ones(3, 4)), torch.zeros(5, dtype=torch.long))
    frames = traceback.extract_tb(failure.value.__traceback__)
    package = str(Path(watchglass.__file__).parent)
    ours = [frame for frame in frames if frame.filename.startswith(package)]
    assert [frame.name for frame in ours] == ["cross_entropy"]
