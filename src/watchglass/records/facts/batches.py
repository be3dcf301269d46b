"""Facts about the batches that a model gets, and the loaders that make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class BatchInputs(DeclaredFact):
    """Hash of the model's inputs, with the data worker where known.

    Attributes:
        hashes: 16 digits each, of one batch or of the first ones of an epoch.
        varied: Sampled elements that differ from the most frequent one; near 0, equal hashes mean nothing.
        shapes, sampled, elements: Shapes of the inputs, and how many of their elements are sampled.
        iterations: For a captured step: how often each loader was iterated over so far; batches with equal numbers
            belong to one epoch.
        same_tensor, part: For a captured step: whether its first input is the very tensor of the captured step before,
            and the share (0..1) of its rows among those of the tensor that it is a view of.
        loader, iteration, workers: For the first batches of an epoch.
    """

    KIND = "batch"
    FROM = "arguments of the outermost module"
    WHEN = "captured steps; first batches of the 1st, 2nd, 4th, 8th ... epoch of a loader with several workers"
    COST = "a copy of at most 64 KiB of the inputs at captured steps and at the beginning of some epochs"

    hashes: tuple[str, ...] = ()
    varied: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sampled: int = 0
    elements: int = 0
    iterations: Mapping[str, int] | None = None
    same_tensor: bool | None = None
    part: float | None = None
    loader: str | None = None
    iteration: int | None = None
    workers: tuple[int, ...] | None = None

    @property
    def of_epoch(self) -> bool:
        """Whether it is about the first batches of an epoch."""
        return self.loader is not None or self.workers is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first input; ``()`` where there is none."""
        return next(iter(self.shapes.values()), ())


@dataclass(frozen=True)
class LoaderSettings(DeclaredFact):
    """Settings of each data loader, when it is first iterated over.

    It runs no code of the data set except `__len__`, which the sampler calls at the same moment.

    Attributes:
        loader, data_set, iterable: Name of the loader, class of its data set, and whether that is iterable.
        sampler: Class of the sampler of samples; of batches if it is not PyTorch's `BatchSampler`.
        batch_size, batches: Samples of a batch; batches of an epoch, absent without a sampler of PyTorch and a known
            length.
        drop_last, num_workers, in_order, persistent_workers, worker_init_fn, generator: As the script has set them.
    """

    KIND = "data_loader"
    FROM = "`torch.utils.data.DataLoader`"
    WHEN = "once"
    COST = "a microsecond per epoch"
    UNSEEN = "no data loader was seen"

    loader: str = ""
    data_set: str | None = None
    iterable: bool | None = None
    sampler: str | None = None
    batch_size: int | None = None
    batches: int | None = None
    drop_last: bool | None = None
    num_workers: int | None = None
    in_order: bool | None = None
    persistent_workers: bool | None = None
    worker_init_fn: str | None = None
    generator: bool | None = None


@dataclass(frozen=True)
class RowsSeen(DeclaredFact):
    """Which batches of evaluations are training data: the share of their rows that training steps have had.

    No fact has this name. It is a series of evaluations: the share, from 0 to 1, of up to 64 rows of a batch
    ([evaluations of two splits](pytorch.md#evaluations-of-two-splits)).
    """

    KIND = "rows_seen_in_training"
    FROM = "the first input of the model"
    WHEN = "captured training steps, as sketches, and batches of evaluations"
    COST = (
        "a copy of at most 64 rows of the inputs, of each at most 64 numbers or 256 tokens, at about 80 of 5,000 "
        "training steps and at each batch of an evaluation"
    )
