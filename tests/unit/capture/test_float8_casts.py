"""Casts to float8 inside forwards and backwards: observed at captured steps only, and nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import watchglass
from float8_layers import Linear8
from watchglass import open_run
from watchglass.capture.pytorch.tensors.float8_casts import lost_by_cast

KINDS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Linear8(16, 300.0), nn.Tanh(), Linear8(16, 10.0, 1e-7))


def train(trained: nn.Module, run: Path | None, steps: int = 4, interval: int = 2, **settings: Any) -> Tensor:
    optimizer = torch.optim.SGD(trained.parameters(), 0.01)
    settings = {"collections": ["float8_casts"], "save_interval": interval, "strict": True, **settings}
    hook = None if run is None else watchglass.watch(trained, run=run, **settings)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        trained(torch.randn(64, 16, generator=generator)).square().mean().backward()
        optimizer.step()
    if hook is not None:
        hook.close()
    return torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])


def cast_names(run: Path) -> list[str]:
    return sorted(name for name in open_run(run).tensor_names() if "cast_" in name)


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_shares_are_those_of_the_cast_itself(kind: torch.dtype, source: torch.dtype) -> None:
    torch.manual_seed(0)
    given = (torch.randn(20_000) * torch.exp(8 * torch.randn(20_000))).to(source)
    given[:4] = torch.tensor([torch.inf, torch.nan, 0.0, -0.0])
    finite, cast = given.isfinite(), given.to(kind).float()
    over, under = lost_by_cast(given, kind)
    assert over.item() == pytest.approx((given.abs() >= torch.finfo(kind).max)[finite].float().mean().item())
    nonzero = finite & (given != 0)
    assert under.item() == pytest.approx((cast == 0)[nonzero].float().mean().item(), abs=1e-9)
    assert 0 < under < 1


def test_a_large_tensor_is_sampled_and_an_empty_one_loses_nothing() -> None:
    given = torch.ones(3, 1 << 21).T * 1000.0
    assert lost_by_cast(given, torch.float8_e4m3fn) == (1.0, 0.0)
    assert lost_by_cast(torch.zeros(4), torch.float8_e4m3fn) == (0.0, 0.0)


def test_casts_are_recorded_by_module_and_direction(tmp_path: Path) -> None:
    trained = model()
    first = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    train(trained, tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert cast_names(tmp_path / "run") == [
        f"{layer}.cast_{what}.{kind}.0"
        for layer in (0, 2)
        for what in ("overflow", "underflow")
        for kind in ("backward.float8_e5m2", "float8_e4m3fn")
    ]
    over = run.tensor("0.cast_overflow.float8_e4m3fn.0")
    assert over.steps() == [0, 2]
    assert over.reduction(0, "mean") == pytest.approx(((first * 300).abs() >= 448).float().mean().item(), rel=1e-6)
    assert run.tensor("0.cast_underflow.backward.float8_e5m2.0").reduction(0, "mean") < 0.1
    assert run.tensor("2.cast_underflow.backward.float8_e5m2.0").reduction(0, "mean") > 0.9, "it casts with 1e-7"


def test_nothing_is_wrapped_outside_of_captured_steps_and_no_number_changes(tmp_path: Path) -> None:
    wrapped = []

    class Looks(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            wrapped.append("to" in vars(Tensor))
            return inputs

    seen = train(nn.Sequential(*model(), Looks()), tmp_path / "run", steps=5)
    assert wrapped == [True, False, True, False, True]
    assert "to" not in vars(Tensor)
    assert torch.equal(seen, train(nn.Sequential(*model(), Looks()), None, steps=5))


def test_without_casts_it_looks_ever_more_rarely(tmp_path: Path) -> None:
    wrapped = []

    class Looks(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            wrapped.append("to" in vars(Tensor))
            return super().forward(inputs)

    train(Looks(16, 16), tmp_path / "run", steps=17, interval=1)
    assert [number for number, on in enumerate(wrapped, 1) if on] == [1, 2, 3, 4, 8, 16]


class Own(Tensor):
    """A kind of tensors of a script, that looks methods up in a table made at import."""

    original = Tensor.to
    met: list[bool] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "to":
            cls.met.append(func == cls.original)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_kinds_of_tensors_of_a_script_never_meet_the_wrapper(tmp_path: Path) -> None:
    class Converts(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            inputs.as_subclass(Own).to(torch.float8_e4m3fn)
            return super().forward(inputs)

    Own.met.clear()
    train(Converts(16, 16), tmp_path / "run", steps=2, interval=1)
    assert Own.met == [True, True]
    assert not cast_names(tmp_path / "run")


@pytest.mark.filterwarnings("ignore")
def test_compiled_functions_are_compiled_once_and_casts_beside_them_are_seen(tmp_path: Path) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def scaled(inputs: Tensor) -> Tensor:
        return inputs.to(torch.bfloat16).to(torch.float32) * 2

    class Partly(Linear8):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(scaled(inputs))

    torch.compiler.reset()
    counters.clear()
    train(Partly(16, 1.0), tmp_path / "run", steps=4)
    assert counters["stats"]["unique_graphs"] == 1
    assert "cast_overflow.float8_e4m3fn.0" in cast_names(tmp_path / "run")
    torch.compiler.reset()


def test_a_step_that_fails_leaves_nothing_wrapped(tmp_path: Path) -> None:
    class Fails(Linear8):
        broken = True

        def forward(self, inputs: Tensor) -> Tensor:
            output = super().forward(inputs)
            if self.broken:
                raise ArithmeticError
            return output

    trained = Fails(16, 1.0)
    settings: dict[str, Any] = {"collections": ["float8_casts"], "save_interval": 1, "strict": True}
    with watchglass.watch(trained, run=tmp_path / "run", **settings), pytest.raises(ArithmeticError):
        trained(torch.randn(4, 16))
    assert "to" not in vars(Tensor)


def test_a_cast_outside_of_forward_and_backward_is_not_recorded(tmp_path: Path) -> None:
    trained = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(trained.parameters(), 0.01)
    with watchglass.watch(trained, run=tmp_path / "run", collections=["float8_casts"], save_interval=1, strict=True):
        for _ in range(2):
            loss = trained(torch.randn(4, 16)).square().mean()
            loss.detach().to(torch.float8_e4m3fn)
            loss.backward()
            optimizer.step()
    assert not cast_names(tmp_path / "run")
