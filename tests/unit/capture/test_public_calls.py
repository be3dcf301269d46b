"""Wrapped functions: each call is reported once even if others wrap them, too, and the original is restored."""

from __future__ import annotations

import functools
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from guards import guard as new_guard
from watchglass.capture.pytorch import public_calls as calls


class Heard:
    """A listener that counts."""

    def __init__(self) -> None:
        self.backwards = self.losses = 0
        self._leave: list[Callable[[], None]] = []

    def listen(self) -> None:
        guard = new_guard(strict=False)
        calls.LOSS_HOOKS.rest(self, False)
        self._leave = [
            calls.EVERY_BACKWARD.listen(guard, before=self._backward),
            *(call.listen(guard, after=self._loss) for call in calls.LOSSES.values()),
        ]

    def leave(self) -> None:
        calls.LOSS_HOOKS.rest(self, True)
        while self._leave:
            self._leave.pop()()

    def _backward(self, args: Any, kwargs: Any) -> None:
        self.backwards += 1

    def _loss(self, *call: Any) -> None:
        self.losses += 1


def heard() -> tuple[int, int]:
    """What one listener hears of a loss and its backward."""
    found = Heard()
    found.listen()
    F.mse_loss(torch.ones(2, requires_grad=True), torch.zeros(2)).backward()
    found.leave()
    return found.losses, found.backwards


@pytest.fixture
def originals() -> Iterator[dict[Any, Any]]:
    found = {(F, "mse_loss"): F.mse_loss, (torch.autograd, "backward"): torch.autograd.backward}
    yield found
    for (owner, name), function in found.items():
        setattr(owner, name, function)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def other(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return other


def test_what_another_wraps_after_us_is_reported_once_also_the_next_time(originals: dict[Any, Any]) -> None:
    first = Heard()
    first.listen()
    for owner, name in originals:
        setattr(owner, name, wrapped(getattr(owner, name)))
    first.leave()
    for _ in range(3):
        assert heard() == (1, 1)
    assert (first.losses, first.backwards) == (0, 0)
    for (owner, name), function in originals.items():
        setattr(owner, name, function)
    assert heard() == (1, 1), "ours went with the other one, so the function is wrapped again"
    assert F.mse_loss is originals[F, "mse_loss"]


def test_what_was_wrapped_before_us_may_be_unwrapped_at_any_time(originals: dict[Any, Any]) -> None:
    for (owner, name), function in originals.items():
        setattr(owner, name, wrapped(function))
    first = Heard()
    first.listen()
    for (owner, name), function in originals.items():
        setattr(owner, name, function)
    first.leave()
    assert heard() == (1, 1)
    assert F.mse_loss is originals[F, "mse_loss"]


def test_a_wrapper_of_ours_that_another_has_kept_and_put_back_is_reported_once(originals: dict[Any, Any]) -> None:
    first, second = Heard(), Heard()
    first.listen()
    ours = {place: getattr(*place) for place in originals}
    for (owner, name), function in ours.items():
        setattr(owner, name, wrapped(function))
    first.leave()
    second.listen()
    for (owner, name), function in ours.items():
        setattr(owner, name, function)
    F.mse_loss(torch.ones(2, requires_grad=True), torch.zeros(2)).backward()
    second.leave()
    assert (second.losses, second.backwards) == (1, 1)


def test_a_call_that_is_observed_for_facts_is_wrapped_again_after_ours_was_removed() -> None:
    original, count = torch.nn.utils.clip_grad_norm_, 0
    guard = new_guard(strict=False)

    def called(*call: Any) -> None:
        nonlocal count
        count += 1

    call = calls.PublicCall(lambda: ((torch.nn.utils, "clip_grad_norm_"),))
    try:
        for expected in (1, 2):
            leave = call.listen(guard, after=called)
            torch.nn.utils.clip_grad_norm_(torch.ones(1), 1.0)
            assert count == expected
            torch.nn.utils.clip_grad_norm_ = wrapped(torch.nn.utils.clip_grad_norm_)
            leave()
            torch.nn.utils.clip_grad_norm_ = original
    finally:
        torch.nn.utils.clip_grad_norm_ = original


def test_a_loss_is_reported_once_under_a_default_device() -> None:
    # A mode of torch functions calls the public function again from within.
    before = torch.get_default_device()
    torch.set_default_device("cpu")
    try:
        with torch.device("cpu"):
            assert heard() == (1, 1)
    finally:
        torch.set_default_device(None)
    assert torch.get_default_device() == before


def test_what_a_script_puts_in_place_for_a_while_is_not_kept() -> None:
    guard = new_guard(strict=False)
    original, gone = F.softmax, []
    try:
        for _ in range(3):
            F.softmax = wrapped(original)  # type: ignore[assignment]
            gone.append(weakref.ref(F.softmax))
            leave = calls.SOFTMAX.listen(guard)
            leave()
            F.softmax = original
            calls.SOFTMAX.listen(guard)()
    finally:
        F.softmax = original
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_the_wrapper_of_a_function_is_the_same_each_time() -> None:
    guard = new_guard(strict=False)
    found = []
    for _ in range(2):
        leave = calls.SOFTMAX.listen(guard)
        found.append((torch.softmax, F.softmax, torch.Tensor.softmax))
        leave()
    assert found[0] == found[1]
    assert found[0] != (torch.softmax, F.softmax, torch.Tensor.softmax)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch, "softmax"), (torch.Tensor, "softmax"), (F, "softmax"), (F, "scaled_dot_product_attention")],
)
def test_a_function_that_stays_wrapped_can_be_pickled(owner: Any, name: str) -> None:
    leave = calls.keep_wrapped(new_guard(strict=False))
    try:
        function = getattr(owner, name)
        assert calls.is_wrapped(function)
        assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301
    finally:
        leave()
