"""Models are called as the script calls them: by a variable of its main module, or an attribute of an object there."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from watchglass import open_run
from watchglass.capture.pytorch.modules.module_tree import variable_of


class Agent:
    def __init__(self) -> None:
        self.critic = nn.Linear(4, 1)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_two_models_have_their_names_in_the_script(main: types.ModuleType, run_path: Path) -> None:
    vars(main).update(G=nn.Linear(4, 4), agent=Agent())
    models = {"G": main.G, "agent.critic": main.agent.critic}
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.01) for name, model in models.items()}
    with watchglass.watch(main.G, run=run_path, strict=True):
        watchglass.watch(main.agent.critic)
        for _ in range(4):
            for name, model in models.items():
                optimizers[name].zero_grad()
                F.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, len(model.bias))).backward()
                optimizers[name].step()
    run = open_run(run_path)
    assert [(each.name, each.variable) for each in run.models] == [("model", "G"), ("model_2", "agent.critic")]
    assert "model_2/loss" in run.tensor_names()  # names of tensors and series stay


def test_a_wrapper_has_the_name_of_its_model_and_a_local_model_has_none(main: types.ModuleType) -> None:
    inner = nn.Linear(2, 2)
    main.parallel = nn.DataParallel(inner)
    assert variable_of(inner) == "parallel"
    assert variable_of(nn.Linear(2, 2)) == ""


def test_a_private_name_does_not_count_and_no_code_of_the_script_runs(main: types.ModuleType) -> None:
    class Trap:
        @property
        def model(self) -> None:
            raise AssertionError("a property was read")

        def __getattribute__(self, name: str) -> None:
            raise AssertionError("an attribute was read")

    model = nn.Linear(2, 2)
    vars(main).update(_private=model, trap=Trap())
    assert variable_of(model) == ""


def test_the_search_holds_no_model(main: types.ModuleType) -> None:
    main.D = nn.Linear(2, 2)
    gone = weakref.ref(main.D)
    assert variable_of(main.D) == "D"
    del main.D
    gc.collect()
    assert gone() is None
