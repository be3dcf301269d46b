"""Which module is named, from what was seen of all module calls of one forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from failing import Bad, Poisoned, to_nan
from guards import guard
from watchglass.capture.facts import first_bad as analysis
from watchglass.capture.facts.first_bad import Look
from watchglass.capture.pytorch.first_bad.extremes import bring_back, look_at
from watchglass.capture.pytorch.first_bad.forward_replay import RefusedError
from watchglass.capture.pytorch.first_bad.trace import Trace
from watchglass.capture.pytorch.modules.module_tree import ModuleTree


class Function(nn.Module):
    """Any function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any, **kwargs: Any) -> Any:
        return self.function(*arguments, **kwargs)


class Around(nn.Module):
    """Functions between its modules."""

    def __init__(self, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.second(self.before(self.first(x))))


def spoilt(spoil: Callable[[Tensor], Tensor]) -> Bad:
    module = Bad(spoil)
    module.on = True
    return module


def traced(model: nn.Module, *arguments: Any, **settings: Any) -> tuple[Trace, Any]:
    torch.manual_seed(0)
    tree = ModuleTree(model)
    trace = Trace(tree.module, **settings)
    with trace.listening():
        output = model(*arguments)
    return trace, output


def forward(model: nn.Module, *arguments: Any) -> analysis.Found | None:
    return analysis.in_forward(traced(model, *arguments)[0].seen)


def backward(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] = torch.sum) -> analysis.Found | None:
    trace, output = traced(model, x, gradients=guard())
    loss(output).backward()
    trace.close()
    return analysis.in_backward(trace.seen)


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_nothing_is_found_where_all_is_finite() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    assert forward(model, X) is None
    assert backward(model, X) is None


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_innermost_module_is_named(depth: int) -> None:
    bad: nn.Module = nn.Sequential(nn.Linear(4, 4), spoilt(to_nan), nn.Linear(4, 4))
    path = "1"
    for _ in range(depth):
        bad, path = nn.Sequential(nn.Linear(4, 4), bad, nn.ReLU()), f"1.{path}"
    found = forward(bad, X)
    assert found is not None
    assert found.place is not None
    assert (found.where, found.place.path, found.place.module_type) == ("forward", path, "Bad")
    assert found.tensor == f"{path}.output"
    assert "turned finite inputs (largest magnitude" in found.sentence


def test_what_a_module_does_between_others_is_its_own() -> None:
    found = forward(nn.Sequential(Around(to_nan)), X)
    assert found is not None
    assert found.place is not None
    assert (found.where, found.place.path, found.tensor) == ("forward", "0", "0.second.input.0")
    assert found.sentence == "0 (Around) made values that are not finite before it called 0.second (Linear)"


def test_what_a_module_does_at_its_end_is_its_own() -> None:
    found = forward(nn.Sequential(Around(torch.clone, to_nan), nn.ReLU()), X)
    assert found is not None
    assert found.place is not None
    assert (found.place.path, found.tensor) == ("0", "0.output")


def test_inputs_count_as_they_were_before_the_module_wrote_to_them() -> None:
    def overwrite(x: Tensor) -> Tensor:
        return x.mul_(math.nan)

    found = forward(nn.Sequential(nn.Linear(4, 4), Function(lambda x: overwrite(x.detach())), nn.ReLU()), X)
    assert found is not None
    assert found.place is not None
    assert (found.where, found.place.path) == ("forward", "1")
    assert "turned finite inputs" in found.sentence


def test_data_is_named_by_where_it_was_given() -> None:
    x = X.clone()
    x[0, 0] = math.nan
    found = forward(Function(lambda x, more: more["b"] + x), X, {"a": X, "b": x})
    assert found is not None
    assert (found.where, found.tensor) == ("input", "input.1.b")


def test_keyword_arguments_of_the_outermost_call_are_seen() -> None:
    x = torch.full((2, 4), math.inf)
    model = Function(lambda x, more: x + more)
    trace = Trace(ModuleTree(model).module, {"more": x})
    with trace.listening():
        model(X, more=x)
    found = analysis.in_forward(trace.seen)
    assert found is not None
    assert (found.where, found.tensor) == ("input", "input.more")


def test_outputs_in_dictionaries_are_named_by_their_path() -> None:
    found = forward(nn.Sequential(Function(lambda x: {"a": x, "b": (x, x / 0)}), Function(lambda d: d["a"])), X)
    assert found is not None
    assert found.tensor == "0.output.b.1"


def mask(*hidden: int) -> Tensor:
    full = torch.zeros(4)
    full[list(hidden)] = -math.inf
    return full


class Attending(nn.Module):
    """Attention handwritten: scores with an additive mask, then modules."""

    def __init__(self, spoil: Callable[[Tensor], Tensor] = torch.clone) -> None:
        super().__init__()
        self.scores = Function(lambda x, hidden: x + hidden)
        self.softmax = nn.Softmax(-1)
        self.bad = spoilt(spoil)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.bad(self.softmax(self.scores(x, hidden)))  # type: ignore[no-any-return]


def test_masks_are_no_failure() -> None:
    assert forward(Attending(), X, mask(1)) is None
    found = forward(Attending(to_nan), X, mask(1))
    assert found is not None
    assert found.place is not None
    assert found.place.path == "bad"


def test_a_mask_that_hides_everything_is_found_where_it_was_added() -> None:
    found = forward(Attending(), X, torch.stack([mask(1), mask(0, 1, 2, 3)]))
    assert found is not None
    assert found.place is not None
    assert found.place.path == "scores"
    assert found.sentence.endswith("into negative infinity, of which softmax (Softmax) made values that are not finite")


@pytest.mark.parametrize("rest", [(), (nn.Dropout(0.1),), (nn.Identity(), nn.ReLU6())])
def test_the_logarithm_of_zero_is_found_and_not_what_follows(rest: tuple[nn.Module, ...]) -> None:
    follows = (*rest[:1], nn.Linear(4, 2)) if rest else (nn.Linear(4, 2),)
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    found = forward(nn.Sequential(Function(torch.log), *follows), x)
    assert found is not None
    assert found.place is not None
    assert found.place.path == "0"
    assert "into negative infinity, of which" in found.sentence


def test_negative_infinity_that_the_model_returns_is_followed_to_where_it_arose() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    found = forward(nn.Sequential(nn.ReLU(), nn.Sequential(Function(torch.log)), Function(lambda x: x - 1)), x)
    assert found is not None
    assert found.place is not None
    assert (found.where, found.place.path) == ("forward", "1.0")


def test_negative_infinity_in_the_data_is_the_data() -> None:
    found = forward(nn.Sequential(nn.Identity(), nn.Linear(4, 2)), torch.tensor([[-math.inf, 1.0, 2.0, 3.0]]))
    assert found is not None
    assert (found.where, found.tensor) == ("input", "input.0")


def test_modules_left_by_an_exception_do_not_confuse_the_order() -> None:
    class Trying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.broken = nn.Sequential(nn.Identity(), Function(lambda x: x.view(3, 3)))
            self.bad = spoilt(to_nan)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.broken(x)  # type: ignore[no-any-return]
            except RuntimeError:
                return self.bad(x)  # type: ignore[no-any-return]

    trace, _ = traced(nn.Sequential(Trying()), X)
    found = analysis.in_forward(trace.seen)
    assert found is not None
    assert found.place is not None
    assert found.place.path == "0.bad"


@pytest.mark.parametrize("depth", [0, 2])
def test_a_backward_is_followed_to_the_innermost_module(depth: int) -> None:
    bad: nn.Module = nn.Sequential(nn.Linear(4, 4), spoilt(Poisoned.apply), nn.Linear(4, 4))
    path = "1"
    for _ in range(depth):
        bad, path = nn.Sequential(nn.Linear(4, 4), bad, nn.ReLU()), f"1.{path}"
    found = backward(bad, X)
    assert found is not None
    assert found.place is not None
    assert (found.where, found.place.path, found.tensor) == ("backward", path, f"gradient/{path}.output")


def test_a_function_between_modules_is_its_callers_in_the_backward_too() -> None:
    found = backward(nn.Sequential(nn.Linear(4, 4), Around(Poisoned.apply)), X)
    assert found is not None
    assert found.place is not None
    assert (found.place.path, found.tensor) == ("1", "gradient/1.first.output")
    assert found.sentence.startswith("going back through what 1 (Around) does after 1.first (Linear)")


def test_a_residual_connection_hides_nothing() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.skip = nn.Sequential(nn.Linear(4, 4), spoilt(Poisoned.apply)), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.skip(x) + self.inside(x)  # type: ignore[no-any-return]

    found = backward(nn.Sequential(nn.Linear(4, 4), Residual(), nn.ReLU()), X)
    assert found is not None
    assert found.place is not None
    assert found.place.path == "1.inside.1"


def test_a_loss_that_sends_back_bad_gradients_is_the_loss() -> None:
    found = backward(nn.Sequential(nn.Linear(4, 4)), X, lambda output: (output * 0).sqrt().sum())
    assert found is not None
    assert found.where == "loss"


def test_hooks_on_leaves_do_not_stay() -> None:
    x = X.clone().requires_grad_()
    trace, output = traced(nn.Linear(4, 2), x, gradients=guard())
    output.sum().backward()
    seen = len(trace.seen.gradients)
    assert seen == 2
    trace.close()
    x.sum().backward()
    assert len(trace.seen.gradients) == seen


def test_gradients_pass_unchanged() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model(X).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    assert backward(model, X) is None
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]


def test_a_trace_keeps_no_tensor_alive() -> None:
    import weakref

    alive: list[int] = []
    made: list[weakref.ref[Tensor]] = []

    def note(x: Tensor) -> Tensor:
        alive.append(sum(reference() is not None for reference in made))
        made.append(weakref.ref(x))
        return x * 2

    with torch.no_grad():
        traced(nn.Sequential(*(Function(note) for _ in range(6))), X)
    assert max(alive) <= 1


def test_memory_that_is_held_is_bounded_and_counted() -> None:
    size = 1 << 20
    model = nn.Sequential(*(Function(torch.exp) for _ in range(6)))
    x = torch.full((size // 4,), -50.0, requires_grad=True)
    with torch.no_grad():
        trace, _ = traced(model, x, most_bytes=3 * size)
    assert size <= trace.peak_bytes <= 2 * size
    with pytest.raises(RefusedError, match="capture_memory_bytes"):
        traced(model, x, most_bytes=3 * size, graph=True)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn]
)
def test_every_dtype_can_be_examined(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, -2.0, 0.5])
    look = look_at(values.to(dtype))
    assert look is not None
    assert look.finite
    assert look.magnitude == 2.0
    bad = look_at(torch.tensor([1.0, math.nan, 0.5]).to(dtype))
    assert bad is not None
    assert bad.bad


def test_what_is_finite_in_double_precision_is_finite() -> None:
    look = look_at(torch.tensor([1e300, -1e300], dtype=torch.float64))
    assert look is not None
    assert look.finite


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(3, device="meta")])
def test_what_has_no_values_is_left_out(tensor: Tensor) -> None:
    assert look_at(tensor) is None


def test_inside_a_transform_nothing_is_examined() -> None:
    model = spoilt(to_nan)
    trace, output = traced(Function(lambda x: torch.func.vmap(model)(x)), X)
    assert bool(output.isnan().all())
    assert [len(call.inputs) for call in trace.seen.calls] == [1, 0][: len(trace.seen.calls)]


@pytest.mark.parametrize(
    ("low", "high", "bad", "sunk", "finite"),
    [
        (-1.0, 1.0, False, False, True),
        (math.nan, math.nan, True, False, False),
        (-1.0, math.inf, True, False, False),
        (-math.inf, math.inf, True, True, False),
        (-math.inf, 3.0, False, True, False),
        (-math.inf, -math.inf, False, True, False),
        (-math.inf, 0.0, False, False, False),
    ],
)
def test_kinds_of_values(low: float, high: float, bad: bool, sunk: bool, finite: bool) -> None:
    look = Look(low, high)
    assert (look.bad, look.sunk, look.finite) == (bad, sunk, finite)


def test_looks_come_back_from_a_device_together() -> None:
    looks = [Look(1.0, 2.0), *(Look(coming=torch.tensor([float(n), n + 1.0])) for n in range(3))]
    arrive = bring_back(looks)
    assert all(look.coming is None for look in looks)
    arrive()
    assert [(look.low, look.high) for look in looks] == [(1.0, 2.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]


def test_a_loss_of_finite_outputs_is_the_loss() -> None:
    trace, _ = traced(nn.Sequential(nn.Linear(4, 4), nn.Identity()), X)
    found = analysis.in_loss([trace.seen], "cross_entropy")
    assert found.where == "loss"
    assert "the result of cross_entropy is not" in found.sentence
