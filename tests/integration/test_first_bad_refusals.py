"""Where a failing forward is not repeated, and the reason that is recorded."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, debug
from torch.utils._python_dispatch import TorchDispatchMode

from failing import Bad, Poisoned, Training, fact_of, facts_of, network, to_nan
from watchglass import Hook, open_run
from watchglass.capture.limits import CaptureLimits
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.pytorch.first_bad.extremes import look_at
from watchglass.capture.pytorch.first_bad.forward_replay import RefusedError, alone

Forward = Callable[[nn.Module, Tensor], Tensor]


def refused(path: Path, training: Training, **settings: Any) -> str:
    """The reason of the flags that are recorded where the training is spoilt."""
    facts = facts_of(path, training, lambda number: training.spoil(number >= 3), **settings)
    assert facts[0]["level"] == "flags"
    assert facts[0]["where"] in ("loss", "backward")
    assert [fact["level"] for fact in facts[1:]] in ([], ["next_steps"])
    return str(facts[0]["refused"])


def of_loss(training: Training, loss: Callable[[], Tensor]) -> Training:
    training.loss = loss  # type: ignore[method-assign]
    return training


class Calling(nn.Module):
    """A model whose forward does something beside."""

    def __init__(self, beside: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.body = network()
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        self.beside(x)
        return self.body(x)  # type: ignore[no-any-return]


def test_a_forward_that_does_not_repeat_itself(tmp_path: Path) -> None:
    scales = iter(range(1, 10000))
    model = nn.Sequential(network(lambda x: x * next(scales)), Bad(lambda x: torch.cat([x[:1], to_nan(x[1:])])))
    assert "did not repeat itself" in refused(tmp_path / "run", Training(model))


def test_arguments_that_cannot_be_given_twice(tmp_path: Path) -> None:
    class FromIterator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: Tensor, more: Any) -> Tensor:
            return self.body(x) * next(more)  # type: ignore[no-any-return]

    for name, more in (("iterator", lambda: iter([1.0])), ("generator", lambda: (1.0 for _ in range(1)))):
        training = Training(FromIterator())
        of_loss(training, lambda: F.cross_entropy(training.model(training.inputs, more()), training.labels))  # noqa: B023
        assert "cannot be given twice" in refused(tmp_path / name, training)


def test_an_input_that_was_changed_after_the_forward(tmp_path: Path) -> None:
    training = Training(network())

    def loss() -> Tensor:
        inputs = training.inputs.clone()
        output = training.model(inputs)
        inputs.zero_()
        return F.cross_entropy(output, training.labels)

    training.model[0].requires_grad_(False)  # type: ignore[index,union-attr]
    assert refused(tmp_path / "run", of_loss(training, loss)) == "an input was changed after the forward"


@pytest.mark.parametrize("at", [3, 30])
def test_an_input_inside_a_dictionary_counts_too(tmp_path: Path, at: int) -> None:
    class Taking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network().requires_grad_(False)
            self.head = nn.Linear(3, 3)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.head(self.body(batch["x"]))  # type: ignore[no-any-return]

    training = Training(Taking())

    def loss() -> Tensor:
        batch = {"x": training.inputs.clone()}
        output = training.model(batch)
        batch["x"].add_(1)
        return F.cross_entropy(output, training.labels)

    of_loss(training, loss)
    facts = facts_of(
        tmp_path / "run", training, lambda number: training.spoil(number >= at), steps=at + 1, save_interval=1000
    )
    assert facts[0]["refused"] == "an input was changed after the forward"


def test_keyword_arguments_that_were_not_seen(tmp_path: Path) -> None:
    training = Training(network())
    training.spoil()
    # Found by its first call, of which a hook on all modules is not shown them.
    with Hook(run=tmp_path / "run", strict=True, save_interval=1) as hook:
        PyTorchAdapter(hook.port, discover=True)
        training.step()
    (found, *_) = open_run(tmp_path / "run").facts("first_bad_module")
    assert found.data["refused"] == "the first call of a model is seen without its keyword arguments"


def test_a_compiled_model(tmp_path: Path) -> None:
    training = Training(network())
    training.model = torch.compile(training.model, backend="eager")  # type: ignore[assignment]
    assert refused(tmp_path / "run", training) == "the model is compiled"


def test_a_model_that_is_compiled_in_place(tmp_path: Path) -> None:
    training = Training(network())
    training.model.compile(backend="eager")
    assert refused(tmp_path / "run", training) == "the model is compiled"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_with_a_compiled_part(tmp_path: Path, in_place: bool) -> None:
    part = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    if in_place:
        part.compile(backend="eager")
    else:
        part = torch.compile(part, backend="eager")  # type: ignore[assignment]
    assert refused(tmp_path / "run", Training(nn.Sequential(part, network()))) == "the model is compiled"


def test_a_model_with_a_scripted_part(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        scripted = torch.jit.script(nn.Linear(6, 6))
    assert refused(tmp_path / "run", Training(nn.Sequential(scripted, network()))) == "the model is compiled"


@pytest.mark.parametrize("spoil", [to_nan, Poisoned.apply])
def test_too_little_memory(tmp_path: Path, spoil: Callable[[Tensor], Tensor]) -> None:
    training = Training(network(spoil))
    assert refused(tmp_path / "run", training, capture_memory_bytes=700) == (
        "a re-run would take more than capture_memory_bytes"
    )


def test_memory_that_suffices_without_a_graph_but_not_with_one(tmp_path: Path) -> None:
    def deep(spoil: Callable[[Tensor], Tensor]) -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 1000), *(nn.Sigmoid() for _ in range(20)), Bad(spoil), nn.Linear(1000, 3))

    size = 16 * 1000 * 4
    assert fact_of(tmp_path / "forward", Training(deep(to_nan)), capture_memory_bytes=4 * size)["level"] == "rerun"
    more = refused(tmp_path / "backward", Training(deep(Poisoned.apply)), capture_memory_bytes=4 * size)
    assert "capture_memory_bytes" in more
    assert fact_of(tmp_path / "room", Training(deep(Poisoned.apply)))["level"] == "rerun"


def test_a_rerun_that_fails(tmp_path: Path) -> None:
    training = Training(Calling(lambda x: None))

    def loss() -> Tensor:
        training.model.beside = lambda x: None  # type: ignore[assignment]
        output = training.model(training.inputs)
        training.model.beside = lambda x: 1 / 0  # type: ignore[assignment]
        return F.cross_entropy(output, training.labels)

    reason = refused(tmp_path / "run", of_loss(training, loss))
    assert reason == "the re-run failed: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(("at", "interval"), [(3, 1), (30, 1000)])
def test_a_backward_from_an_unknown_loss(tmp_path: Path, at: int, interval: int) -> None:
    """The loss is no function of PyTorch, and what it sent back is too large to keep, or comes unheard."""
    training = of_loss(Training(network(Poisoned.apply)), lambda: (training.model(training.inputs) ** 2).mean())
    limits = CaptureLimits(norm_interval=1, kept_forward_bytes=100 if interval == 1 else 1 << 20)
    facts = facts_of(
        tmp_path / "run", training, lambda number: training.spoil(number >= at), steps=at + 1, save_interval=interval,
        limits=limits,
    )  # fmt: skip
    assert (facts[0]["level"], facts[0]["where"], facts[0]["at"]) == ("flags", "backward", at)
    assert facts[0]["refused"] == "the gradient of the loss is unknown"


NOTHING_SEEN = "there was no forward with a tensor on the CPU before the backward"


def test_a_loss_that_no_model_was_called_for(tmp_path: Path) -> None:
    training = Training(network())
    scale = iter([1.0] * 3 + [math.nan])
    of_loss(training, lambda: (training.model[0].weight * next(scale)).sum())  # type: ignore[index,union-attr,operator]
    facts = facts_of(tmp_path / "run", training, lambda number: None, steps=4)
    assert (facts[0]["level"], facts[0]["where"], facts[0]["at"]) == ("flags", "backward", 3)
    assert facts[0]["refused"] == NOTHING_SEEN


@pytest.mark.parametrize(("at", "interval"), [(3, 1), (30, 1000)])
def test_a_model_that_is_given_no_tensor(tmp_path: Path, at: int, interval: int) -> None:
    class Given(nn.Module):
        """Draws its data itself, from a seed."""

        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, seed: int) -> Tensor:
            return self.body(torch.randn(16, 6, generator=torch.Generator().manual_seed(seed)))  # type: ignore[no-any-return]

    training = of_loss(Training(Given()), lambda: F.cross_entropy(training.model(7), training.labels))
    facts = facts_of(
        tmp_path / "run", training, lambda number: training.spoil(number >= at), steps=at + 1, save_interval=interval
    )
    assert (facts[0]["level"], facts[0]["where"], facts[0]["at"]) == ("flags", "loss", at)
    assert facts[0]["refused"] == NOTHING_SEEN


def test_a_loss_of_several_forwards(tmp_path: Path) -> None:
    training = Training(network())

    def loss() -> Tensor:
        one = training.model(training.inputs)
        training.spoil(False)
        return F.cross_entropy(one + training.model(training.inputs), training.labels)

    of_loss(training, loss)
    reason = refused(tmp_path / "run", training)
    assert "several forwards" in reason


def test_what_came_out_of_another_model(tmp_path: Path) -> None:
    first, second = network(), nn.Linear(3, 3)
    training = of_loss(
        Training(nn.Sequential(first, second)),
        lambda: F.cross_entropy(second(first(training.inputs)), training.labels),
    )
    with Hook(run=tmp_path / "run", strict=True, save_interval=1) as hook:
        PyTorchAdapter(hook.port, discover=True)
        for number in range(4):
            training.spoil(number == 3)
            training.step()
    (found, *_) = open_run(tmp_path / "run").facts("first_bad_module")
    assert found.data["refused"] == "another computation produced the input of the last model"


# -- several ranks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone: everything that would wait for other ranks is there, and ends."""
    excepthook = sys.excepthook
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    # PyTorch keeps the group in a cache of this thread. A child that another thread forks would free it, and crash.
    getattr(debug, "_clear_sharding_prop_cache", lambda: None)()
    dist.destroy_process_group()
    sys.excepthook = excepthook


@pytest.fixture
def collectives() -> Iterator[list[str]]:
    """The operations of torch.distributed that ran, by name."""
    called: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace in ("c10d", "_c10d_functional"):
                called.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Noting():  # type: ignore[no-untyped-call]
        yield called


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    "talk",
    [
        dist.all_reduce,
        lambda x: dist.all_gather([torch.empty_like(x)], x.detach()),
        lambda x: dist.broadcast(x, 0),
        lambda x: dist.barrier(),
        lambda x: dist.all_gather_object([None], {"size": len(x)}),
    ],
    ids=["all_reduce", "all_gather", "broadcast", "barrier", "all_gather_object"],
)
def test_a_forward_that_talks_to_other_ranks(
    tmp_path: Path, talk: Callable[[Tensor], object], collectives: list[str]
) -> None:
    training = Training(Calling(lambda x: talk(x.detach().clone())))
    reason = refused(tmp_path / "run", training)
    assert "of torch.distributed, which needs all ranks" in reason
    called = list(collectives)
    collectives.clear()
    for _ in range(6):
        training.loss()
    assert called == collectives, "the re-run may not talk to the other ranks"


@pytest.mark.usefixtures("group")
def test_functional_collectives_are_seen() -> None:
    from torch.distributed._functional_collectives import all_reduce

    with alone(), pytest.raises(RefusedError, match="all_reduce"):
        all_reduce(torch.ones(2), "sum", dist.group.WORLD)  # type: ignore[arg-type]


@pytest.mark.usefixtures("group")
def test_a_data_parallel_model_is_repeated(tmp_path: Path) -> None:
    training = Training(network())
    training.model = nn.parallel.DistributedDataParallel(training.model)
    found = fact_of(tmp_path / "run", training)
    assert (found["level"], found["module"]) == ("rerun", "3")


def test_synchronised_normalisation(tmp_path: Path) -> None:
    training = Training(nn.Sequential(network(), nn.SyncBatchNorm(3).eval()))
    assert refused(tmp_path / "run", training) == "the forward of SyncBatchNorm waits for other ranks"


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("reshard", [True, False])
def test_shards_of_fsdp2(tmp_path: Path, reshard: bool, collectives: list[str]) -> None:
    from torch.distributed.fsdp import fully_shard

    training = Training(network())
    fully_shard(training.model, mesh=init_device_mesh("cpu", (1,)), reshard_after_forward=reshard)  # type: ignore[call-overload]
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01)
    reason = refused(tmp_path / "run", training)
    assert reason.startswith("the forward of FSDP")
    assert reason.endswith("waits for other ranks")


@pytest.mark.usefixtures("group")
def test_a_fully_sharded_model_of_the_first_kind(tmp_path: Path) -> None:
    class FullyShardedDataParallel(nn.Module):
        """Stands in for the class of that name, which wants a device."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self._fsdp_wrapped_module = module

        def forward(self, x: Tensor) -> Tensor:
            return self._fsdp_wrapped_module(x)  # type: ignore[no-any-return]

    training = Training(FullyShardedDataParallel(network()))
    assert refused(tmp_path / "run", training) == "the forward of FullyShardedDataParallel waits for other ranks"


@pytest.mark.usefixtures("group")
def test_tensors_that_are_sharded(tmp_path: Path) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    training = Training(network())
    parallelize_module(training.model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01)
    assert refused(tmp_path / "run", training) == "the parameters are sharded over ranks"


@pytest.mark.usefixtures("group")
def test_a_stage_of_a_pipeline(tmp_path: Path) -> None:
    from torch.distributed.pipelining import PipelineStage

    training = Training(network())
    stage = PipelineStage(training.model, 0, 1, torch.device("cpu"))
    reason = refused(tmp_path / "run", training)
    assert reason.startswith("the model is a stage of a pipeline")
    del stage


@pytest.mark.usefixtures("group")
def test_shards_of_weights_are_examined_without_asking_other_ranks(collectives: list[str]) -> None:
    shard = DTensor.from_local(torch.tensor([1.0, float("nan")]), init_device_mesh("cpu", (1,)), [Shard(0)])
    collectives.clear()
    look = look_at(shard)
    assert look is not None
    assert look.bad
    assert collectives == []
