"""Runs as a transformer's training writes them, made without any training: real encoders, real writer.

Each tensor has a size and a scale of its own; scales wander over the steps, statistics and histograms are those of
normally distributed elements, counted as noisily as a real tensor would be. Rows and bins so take as many bytes as
those of a training run do: some 37 bins a histogram, low bits of sums that no compression finds a rule in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import SCALARS, STATISTIC_FIELDS, Mode, ModuleKind, Role, StepEnd, TensorInfo
from watchglass.stats import Histograms
from watchglass.store import (
    SegmentWriter,
    StatisticsBatch,
    Store,
    claim_worker,
    create_attempt,
    create_run,
    dtype_of,
    encode_catalog,
    encode_lifecycle,
    encode_rows,
    encode_statistics,
    encode_step_ends,
    layout,
    release_worker,
    this_process,
)

#: Elements of tensors, as those of a decoder of width 128: most are vectors.
_SIZES = (128, 128, 384, 512, 16_384, 49_152, 65_536)
#: Elements that a histogram looks at.
_SAMPLE = 16_384
#: Half octaves of magnitude below and above the scale of a tensor that its bins can lie in.
_BELOW, _ABOVE = 34, 6
#: Scales within an octave that bins are worked out for.
_LEVELS = 16
#: Each parameter has all three. With the octaves between which the scales of its kind begin.
_ROLES = ((Role.GRADIENT, "gradient/"), (Role.WEIGHT, ""), (Role.UPDATE, "update/"))
_SCALES = ((-12, -8), (-6, -3), (-16, -13))
_STEP_NS = 12_000_000


def _probabilities() -> NDArray[np.float64]:
    """Share of normal elements of one sign in each half octave, float64[_LEVELS, bins], smallest magnitude first."""
    exponents = np.arange(-_BELOW, _ABOVE) // 2
    halves = np.arange(-_BELOW, _ABOVE) % 2
    low = (1 + halves / 2) * 2.0**exponents
    high = (1 + (halves + 1) / 2) * 2.0**exponents
    erf = np.vectorize(math.erf)
    scales = 2.0 ** (np.arange(_LEVELS) / _LEVELS)[:, None]
    return np.asarray((erf(high / scales / math.sqrt(2)) - erf(low / scales / math.sqrt(2))) / 2)


_SHARES = _probabilities()


@dataclass(frozen=True)
class Simulated:
    """How large a simulated run is.

    Attributes:
        steps: Captured steps of each worker.
        tensors: Tensors of each step.
        workers: Workers.
        steps_per_flush: Steps that share a flush.
        histograms: Whether rows have histograms.
    """

    steps: int
    tensors: int = 300
    workers: int = 1
    steps_per_flush: int = 8
    histograms: bool = True


class Tensors:
    """The tensors of one worker and how their statistics wander."""

    def __init__(self, count: int, seed: int = 0, *, histograms: bool = True) -> None:
        self._random = np.random.default_rng(seed)
        self._histograms = histograms
        self.count = count
        self.sizes = np.array([_SIZES[n // len(_ROLES) % len(_SIZES)] for n in range(count)], np.float64)
        low, high = np.array([_SCALES[n % len(_ROLES)] for n in range(count)]).reshape(count, 2).T
        self._logarithm = self._random.uniform(low, high)

    def catalog(self) -> list[TensorInfo]:
        """Catalog rows; loss is the one behind them."""
        rows = []
        for n in range(self.count):
            layer, (role, prefix) = n // len(_ROLES), _ROLES[n % len(_ROLES)]
            size, module = int(self.sizes[n]), f"blocks.{layer // 6}.linear_{layer % 6}"
            vector = size < _SIZES[4]
            row = TensorInfo(
                n, f"{prefix}{module}.weight", role, module=module, module_type="LayerNorm" if vector else "Linear",
                layer_index=layer, shape=(size,) if vector else (size // 128, 128), dtype="float32",
                trainable=True if role is Role.WEIGHT else None,
                module_kind=ModuleKind.NORMALIZATION if vector else ModuleKind.LINEAR,
            )  # fmt: skip
            rows.append(row)
        return [*rows, TensorInfo(self.count, "loss", Role.LOSS)]

    def rows(self, steps: Sequence[int], *, updates: float = 0.0) -> StatisticsBatch:
        """Statistics of all tensors at some steps, by step; updates larger by so many octaves."""
        random, n = self._random, len(steps) * self.count
        self._logarithm += random.normal(0, 0.02, self.count)
        logarithm = np.tile(self._logarithm, len(steps)) + random.normal(0, 0.05, n)
        logarithm += np.tile(updates * (np.arange(self.count) % len(_ROLES) == 2), len(steps))
        scale, size = 2.0**logarithm, np.tile(self.sizes, len(steps))
        mean = scale * random.normal(0, 1, n) / np.sqrt(size)
        m2 = scale**2 * (size - 1) * (1 + random.normal(0, 1, n) * np.sqrt(2 / size))
        peak = scale * np.sqrt(2 * np.log(size))
        columns = {
            "count": size, "min": _as_float32(-peak * random.normal(1, 0.05, n)),
            "max": _as_float32(peak * random.normal(1, 0.05, n)), "sum": mean * size,
            "abs_sum": scale * size * (math.sqrt(2 / math.pi) + random.normal(0, 0.6, n) / np.sqrt(size)), "m2": m2,
            "l2": np.sqrt(m2 + mean**2 * size),
        }  # fmt: skip
        values = np.zeros((n, len(STATISTIC_FIELDS)))
        for name, column in columns.items():
            values[:, STATISTIC_FIELDS.index(name)] = column
        return StatisticsBatch(
            np.repeat(np.asarray(steps, np.uint64), self.count),
            np.tile(np.arange(self.count, dtype=np.uint32), len(steps)),
            np.ones(n, np.uint32), values, np.zeros(n, np.uint8), np.zeros(n, np.bool_),
            self._counted(logarithm, size) if self._histograms else None,
        )  # fmt: skip

    def _counted(self, logarithm: NDArray[np.float64], size: NDArray[np.float64]) -> Histograms:
        whole = np.floor(logarithm)
        level = np.minimum(((logarithm - whole) * _LEVELS).astype(np.int64), _LEVELS - 1)
        looked_at = np.minimum(size, _SAMPLE)
        half = self._random.poisson(_SHARES[level] * looked_at[:, None])
        other = self._random.poisson(_SHARES[level] * looked_at[:, None])
        counts = np.concatenate([other[:, ::-1], half], axis=1)
        magnitudes = np.arange(-_BELOW, _ABOVE) + 2 * 1075 + 2 * whole[:, None].astype(np.int64)
        keys = np.concatenate([-magnitudes[:, ::-1], magnitudes], axis=1)
        filled = counts > 0
        offsets = np.concatenate([[0], np.cumsum(filled.sum(axis=1))]).astype(np.int64)
        # Noise may count more elements than there are.
        seen = np.maximum(counts.sum(axis=1), looked_at).astype(np.uint64)
        return Histograms(seen, offsets, keys[filled].astype(np.int16), counts[filled].astype(np.uint64))


def _as_float32(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Extremes of a float32 tensor are float32, whatever the sums are."""
    return numbers.astype(np.float32).astype(np.float64)


def with_scalars(infos: Sequence[TensorInfo]) -> list[TensorInfo]:
    """A catalog, its loss last, with what else is recorded at every step."""
    names = ("learning_rate", "gradient_norm")
    return [*infos, *(TensorInfo(len(infos) + n, name, Role.METRIC) for n, name in enumerate(names))]


def flush_frames(
    tensors: Tensors,
    steps: Sequence[int],
    losses: NDArray[np.float64],
    *,
    scalars: bool = False,
    updates: float = 0.0,
) -> list[bytes]:
    """What a recorder writes of some captured steps.

    Args:
        tensors: Their tensors; none where there are none.
        steps: Their numbers.
        losses: A loss each.
        scalars: Also those of :func:`with_scalars`.
        updates: Octaves by which updates are larger than in a healthy training.
    """
    series = [losses, np.full(len(losses), 1e-3), 0.5 + 0.1 * np.sin(losses)] if scalars else [losses]
    table = np.zeros((len(steps), len(series)), dtype_of(SCALARS))
    table["global_step"], table["weight"] = np.asarray(steps)[:, None], 32
    table["tensor_id"] = tensors.count + np.arange(len(series))
    table["value"] = np.transpose(series)
    ends = [StepEnd(n, Mode.TRAIN, n, n, n * _STEP_NS, (n + 1) * _STEP_NS, tensors.count) for n in steps]
    rows = [encode_statistics(tensors.rows(steps, updates=updates))] if tensors.count else []
    return [*rows, encode_rows(SCALARS, table.ravel()), encode_step_ends(ends)]


def simulate(store: Store, run: Simulated, *, seed: int = 0, kinds: int | None = None) -> None:
    """Write a whole run of finished workers, one after another.

    Args:
        store: An empty one.
        run: How large.
        seed: Of the random numbers.
        kinds: Work out the steps of so many workers and let the others repeat them, as replicas do; None for all.
    """
    create_run(store, command=["train.py"])
    attempt = create_attempt(store, "")
    known: dict[int, list[list[bytes]]] = {}
    for rank in range(run.workers):
        kind = rank if kinds is None else rank % kinds
        if kinds is None or kind not in known:
            flushes = worker_flushes(run, seed=seed + kind)
            known[kind] = list(flushes) if kinds is not None else []
        simulate_worker(store, attempt, rank, known[kind] if kinds is not None else flushes)


def worker_flushes(run: Simulated, *, seed: int) -> Iterator[list[bytes]]:
    """The frames of each flush of one worker; the first begins with its catalog."""
    tensors = Tensors(run.tensors, seed, histograms=run.histograms)
    losses = 2.0 + 8.0 * 0.999 ** np.arange(run.steps) + np.random.default_rng(seed).normal(0, 0.05, run.steps)
    frames = [encode_catalog(tensors.catalog())]
    for begin in range(0, run.steps, run.steps_per_flush):
        steps = range(begin, min(begin + run.steps_per_flush, run.steps))
        yield [*frames, *flush_frames(tensors, steps, losses[steps.start : steps.stop])]
        frames = []


def simulate_worker(store: Store, attempt: int, rank: int, flushes: Iterable[list[bytes]]) -> None:
    """Write all that one worker writes, from its claim until it leaves."""
    name, process = layout.worker_name(rank), this_process()
    claim_worker(store, attempt, name, process)
    writer = SegmentWriter(store, attempt, name)
    about: dict[str, Any] = {"worker": name, "time_ns": 0, "wall_ns": 0, "pid": process.pid}
    writer.write([encode_lifecycle({"event": "joined", **about})])
    for frames in flushes:
        writer.write(frames)
    left = {"event": "left", "status": "finished", "reason": "", "counters": {}}
    writer.write([encode_lifecycle({**left, **about})])
    writer.close()
    release_worker(store, attempt, name)
