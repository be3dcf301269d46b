"""Copies to a device are timed, and nobody else sees that: not modes, subclasses, compilers or threads."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from guards import guard as new_guard
from watchglass.capture.pytorch.profiling.device_copies import COPIES
from watchglass.capture.pytorch.public_calls import READS
from watchglass.capture.step_phases import COPY, OTHER, PREPARE, StepPhases

TO = Tensor.to


class Clock:
    """A clock that moves by one at each reading, and as a test wants."""

    now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


class Timed:
    """The phases of a hook that listens."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.phases = StepPhases(self.clock)
        self.guard = new_guard()
        self.phases.begin(PREPARE)
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)  # loads the compiler
        assert COPIES.listen(self.guard, self.phases)

    @property
    def copied_ns(self) -> int:
        """Time of copies since the last look."""
        return self.phases.end()[1][COPY]


class Taking(TorchDispatchMode):
    """Copies take so long."""

    def __init__(self, clock: Clock, ns: int) -> None:
        super().__init__()
        self.clock, self.ns = clock, ns

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.clock.now_ns += self.ns
        return func(*args, **(kwargs or {}))


@pytest.fixture
def timed() -> Iterator[Timed]:
    found = Timed()
    yield found
    COPIES.leave(found.guard)
    assert "to" not in vars(Tensor)
    assert "cuda" not in vars(Tensor)
    assert torch._dynamo.callback_handler.start_callbacks == []


def test_copies_are_carved_out_of_the_phase_in_which_they_are_made(timed: Timed) -> None:
    timed.clock.now_ns = 1000
    with Taking(timed.clock, 100):
        torch.ones(2).to("meta")  # ones take as long
    timed.phases.begin(OTHER)
    _, phases = timed.phases.end()
    assert phases[COPY] == 101
    assert sum(phases) == timed.clock.now_ns - 1


def test_a_copy_inside_another_one_counts_once(timed: Timed) -> None:
    class Nested(Taking):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            torch.ones(2).to("meta")
            return super().__torch_dispatch__(func, types, args, kwargs)

    before = timed.clock.now_ns
    with Nested(timed.clock, 100):
        torch.ones(2).to("meta")
    _, phases = timed.phases.end()
    assert 100 < phases[COPY] < timed.clock.now_ns - before < 300
    assert sum(phases) == timed.clock.now_ns - 1


def test_only_copies_from_the_host_to_a_device_count(timed: Timed) -> None:
    host, device = torch.ones(2), torch.ones(2, device="meta")
    for call in (lambda: host.to(torch.float64), lambda: host.to("cpu"), lambda: device.to(torch.float64),
                 lambda: device.to("meta"), lambda: host.to(torch.ones(1, dtype=torch.float16))):  # fmt: skip
        call()
        assert timed.copied_ns == 0
    host.to(device)
    assert timed.copied_ns == 1
    host.to(device=torch.device("meta"), dtype=torch.float16, non_blocking=True)
    assert timed.copied_ns == 1
    with pytest.raises(RuntimeError, match="no device"):
        host.to("no device")
    with pytest.raises(TypeError):
        Tensor.to(5, "meta")  # type: ignore[arg-type]
    assert timed.copied_ns == 0


def test_another_thread_and_a_hook_that_is_off_read_no_clock(timed: Timed) -> None:
    read = timed.clock.now_ns
    thread = threading.Thread(target=lambda: torch.ones(2).to("meta"))
    thread.start()
    thread.join()
    timed.guard.active = False
    torch.ones(2).to("meta")
    assert timed.clock.now_ns == read


def test_the_class_keeps_its_method(timed: Timed) -> None:
    assert "to" in vars(Tensor)
    assert TO is Tensor.to is torch.nn.Parameter.to
    assert pickle.loads(pickle.dumps(Tensor.to)) is TO  # noqa: S301  # its own
    bound = pickle.loads(pickle.dumps(torch.ones(2).to))  # noqa: S301  # its own
    assert torch.equal(bound("cpu"), torch.ones(2))
    assert torch.overrides.is_tensor_method_or_property(Tensor.to)
    assert Tensor.to in torch.overrides.get_testing_overrides()


def test_modes_and_kinds_of_tensors_of_the_script_see_what_they_see_without_us(timed: Timed) -> None:
    seen: list[Any] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Own(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    host, own = torch.ones(2), torch.ones(2).as_subclass(Own)
    with Mode(), Mode():
        host.to("meta")
    own.to("meta")
    host.to(own)
    assert seen == [TO] * 4


@pytest.mark.parametrize("ours_first", [True, False])
def test_listeners_to_reads_hear_the_same_and_copies_are_timed_beneath(timed: Timed, ours_first: bool) -> None:
    heard: list[Any] = []
    leave = READS["to"].listen(new_guard(), after=lambda args, kwargs, result: heard.append(result.device.type))
    torch.ones(2).to("meta")
    torch.ones(2, device="meta").to(torch.float64)
    Tensor.to(torch.ones(2), "meta")
    torch.ones(2).to(torch.float64)
    assert heard == ["meta", "meta", "meta", "cpu"]
    assert timed.copied_ns == 2
    for end in ((lambda: COPIES.leave(timed.guard)), leave)[:: 1 if ours_first else -1]:
        end()
    assert "to" not in vars(Tensor)


def test_while_a_method_is_wrapped_for_reads_nothing_is_put_around_it() -> None:
    guard = new_guard()
    leave = READS["to"].listen(guard, after=lambda *call: None)
    wrapper = vars(Tensor)["to"]
    assert not COPIES.listen(guard, StepPhases())
    assert vars(Tensor)["to"] is wrapper
    leave()
    assert "to" not in vars(Tensor)


def test_what_a_script_has_put_in_place_stays(timed: Timed) -> None:
    def own(tensor: Tensor, *args: Any) -> Tensor:
        return TO(tensor, *args)

    Tensor.to = own  # type: ignore[assignment]
    try:
        COPIES.settle()
        COPIES.leave(timed.guard)
        assert vars(Tensor)["to"] is own
        assert COPIES.listen(timed.guard, timed.phases)  # around what is there
        torch.ones(2).to("meta")
        assert timed.copied_ns == 1
        assert Tensor.to is own
        COPIES.leave(timed.guard)
        assert vars(Tensor)["to"] is own
    finally:
        del Tensor.to


def test_two_hooks_get_the_same_copies(timed: Timed) -> None:
    other = Timed()
    torch.ones(2).to("meta")
    COPIES.leave(other.guard)
    torch.ones(2).to("meta")
    assert other.copied_ns == 1
    assert timed.copied_ns == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
def test_a_traced_module_does_not_name_our_code(timed: Timed) -> None:
    traced = torch.jit.trace(lambda x: (2 * x).to(torch.float64).to("cpu"), torch.ones(2))
    assert "wrappers_importlib" not in str(traced.graph)


def graphs_of(function: Callable[[Tensor], Any], *inputs: Tensor, **options: Any) -> list[str]:
    found: list[str] = []

    def backend(graph: Any, examples: Any) -> Any:
        assert "to" not in vars(Tensor)
        found.append(graph.code)
        return graph

    compiled = torch.compile(function, backend=backend, **options)
    for each in inputs:
        compiled(each)
    return found


@pytest.fixture
def restore_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)


class Doubling(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return 2 * result if func is Tensor.to else result


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (2 * x).to(torch.float64), lambda x: (2 * x).to("meta"), lambda x: x.to("cpu").relu(),
        lambda x: Tensor.to(2 * x, "meta"), lambda x: getattr(x, "to")(torch.float16),  # noqa: B009
        lambda x: x.as_subclass(Doubling).to(torch.float64),
    ],
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": True}])
@pytest.mark.parametrize("device", [None, "cpu"])  # a default device is a mode of torch functions
def test_compiled_code_is_the_same(
    timed: Timed, function: Callable[[Tensor], Any], options: dict[str, Any], device: str | None, restore_device: None
) -> None:
    torch.set_default_device(device)
    inputs = [torch.ones(3), torch.ones(3), torch.ones(4), torch.ones(5), torch.ones(3)]
    COPIES.leave(timed.guard)
    torch._dynamo.reset()
    wanted = graphs_of(function, *inputs, **options)
    torch._dynamo.reset()  # which forgets who listens to it
    assert COPIES.listen(timed.guard, timed.phases)
    assert graphs_of(function, *inputs, **options) == wanted
    assert "to" in vars(Tensor)


def test_copies_are_timed_and_compilers_left_alone_after_a_reset_of_the_compiler(timed: Timed) -> None:
    torch._dynamo.reset()
    torch.ones(2).to("meta")
    assert timed.copied_ns == 1
    assert len(graphs_of(lambda x: Tensor.to(2 * x, torch.float64), torch.ones(2), fullgraph=True)) == 1
    torch.ones(2).to("meta")
    assert timed.copied_ns == 1


def test_a_compilation_that_fails_puts_the_methods_back(timed: Timed) -> None:
    def failing(graph: Any, examples: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(Exception, match="no"):
        torch.compile(lambda x: x.to("meta"), backend=failing)(torch.ones(2))
    torch.ones(2).to("meta")
    assert timed.copied_ns == 1


def test_function_transforms_and_exports_are_the_same(timed: Timed) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (2 * x).to(torch.float64).to("meta")

    def exported() -> list[str]:
        return [
            str(torch.export.export(Model(), (torch.ones(3),), strict=True)),
            str(torch.export.export(Model(), (torch.ones(3),), strict=False)),
            torch.fx.symbolic_trace(Model()).code,
            str(torch.vmap(lambda x: x.to(torch.float64))(torch.ones(3))),
            str(torch.func.grad(lambda x: x.to(torch.float64).sum())(torch.ones(3))),
        ]

    found = exported()
    COPIES.leave(timed.guard)
    assert found == exported()
