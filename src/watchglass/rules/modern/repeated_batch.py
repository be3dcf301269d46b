"""RepeatedBatch: steps that train on the same batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.stats import median
from watchglass.tables import StepView

#: Different batches that are remembered, inputs of a step that count, and loaders.
_MOST_BATCHES, _MOST_INPUTS, _MOST_LOADERS = 64, 8, 32
#: Steps over batches from which on no loop takes several steps for each batch, as that of a GAN does.
_PASSES = 8
#: Share of a tensor below which a part of it is no whole data set.
_PART = 0.5
#: Loss of an evaluation over that of the training from which on the batch is memorised.
_MEMORIZED = 2.0


class RepeatedBatch(Rule):
    """Many steps train on the same batch, although the data loader has others.

    Looks at: the hash of the inputs at captured steps, and the length of the data loader that gave them: one with the
        batch size of these inputs. Without a known loader: whether the inputs are a part of a larger tensor, and
        whether each step creates them again.
    Fires when: a share of `share` of at least `min_captures` captured steps had the same inputs, and the loader has
        more than one batch. This is an `error`. So is a loader that reads in order and is begun again at each step, or
        one that was begun once eight times as many steps ago as it has batches, if inputs differ by an augmentation and
        `min_captures` sketches of targets in a row are the same (with a loader begun once, of three or more classes
        that are not equally frequent). Or `repeats`
        batches were repeated within one epoch, with others in between (the same batch several times in a row is an
        inner loop). The rule is silent if each step trains on the whole data set. If the size of the data set is
        unknown, the same inputs are a `warning` if each step restarts the loader, or takes less than half of a larger
        tensor again. They are also a `warning` at the end of the run if only one of these holds (a part of a larger
        tensor, or created again at each step), evaluations have more rows, and the evaluation loss is above twice the
        training loss. Otherwise they are an `info`, which adds a cause to overfitting if evaluations have more rows.
    Usual causes: next(iter(loader)) inside or before the loop, a variable of another loop, a sampler that draws the
        same indices.
    What to try: iterate over the loader: for batch in loader.
    Costs: a copy of at most 64 KiB of the inputs at captured steps and at the beginning of some epochs.
    Source: exact; house: `min_captures`, `share`, `repeats`, and the batch size below which chance repeats batches.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("batch",), why="to compare the inputs of steps"),
        Needs(facts=("data_loader",), optional=True, why="to know how many batches there are"),
        Needs(scalars=("loss",), optional=True, why="to know whether a batch was memorised"),
        Needs(facts=("target_sketch",), optional=True, why="to recognise a batch whose inputs are augmented"),
    )

    min_captures: int = parameter(8, help="captured steps before a constant batch is reported", ge=2)
    share: float = parameter(0.9, help="share of captured steps with the same inputs", gt=0.5, le=1)
    repeats: int = parameter(2, help="batches that are repeated within an epoch", unit="batches", ge=1)
    min_varied: int = parameter(16, help="fewest sampled elements that differ from the most frequent value", ge=1)
    min_batch: int = parameter(8, help="batch size below which a batch may repeat by chance", unit="samples", ge=1)

    loaders: dict[str, dict[str, Any]] = state(dict)
    #: By inputs of a step: number of steps, the latest one, the iterations of the loaders then.
    batches: dict[str, dict[str, Any]] = state(dict)
    captures: int = state(int)
    #: Most batches of a step.
    per_step: int = state(lambda: 1)
    last: str = state(str)
    again: int = state(int)
    #: Captured steps whose inputs were made since the one before, and whose inputs are a part of a larger tensor.
    made: int = state(int)
    parts: int = state(int)
    #: Rows of the inputs, most rows of an evaluation, and the loss of the latest one.
    rows: int = state(int)
    evaluated: int = state(int)
    evaluation: float | None = state(lambda: None)
    #: The latest targets, and sketches with these in a row.
    targets: str = state(str)
    alike: Streaks = state(Streaks)
    #: Whether few other batches have such targets.
    distinct: bool = state(bool)

    #: The loaders that may have given the latest batch.
    latest: dict[str, dict[str, Any]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of a captured step."""
        for loader in view.facts(facts.LoaderSettings):
            kept = {name: getattr(loader, name) for name in ("batch_size", "batches", "sampler")}
            # A script may make a loader for each epoch.
            self.loaders = dict([*self.loaders.items(), (loader.loader, kept)][-_MOST_LOADERS:])
        given = [batch for batch in view.facts(facts.BatchInputs) if batch.iterations is not None]
        self._stretches(view)
        if view.mode is not Mode.TRAIN:
            self.evaluated = max([self.evaluated, *map(self._evaluated_rows, given)])
            return
        if not given:
            return
        if max(batch.varied for batch in given) < self.min_varied:
            return
        key = " ".join(hashed for batch in given[:_MOST_INPUTS] for hashed in batch.hashes)
        self.captures += 1
        self.rows = _rows(given[0])
        self.made += given[0].same_tensor is False
        self.parts += (1.0 if given[0].part is None else given[0].part) < _PART
        self.per_step = max(self.per_step, len(given))
        loaders = self.latest = self._loaders(given[0])
        now = {name: count for name, count in (given[0].iterations or {}).items() if name in loaders}
        known = self.batches.get(key)
        if known is None and len(self.batches) < _MOST_BATCHES:
            self.batches[key] = {"steps": 0, "step": view.model_step, "iterations": now}
        if known is not None and key != self.last and now and known["iterations"] == now:
            yield from self._again(view, given[0], loaders, view.model_step - known["step"])
        if key != self.last:
            yield from self._same_targets(view, given[0])
        self.last = key
        if key in self.batches:
            seen = self.batches[key]
            self.batches[key] = {"steps": seen["steps"] + 1, "step": view.model_step, "iterations": now}
            yield from self._constant(view, key, loaders)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement: whether the only batch was memorised."""
        self._stretches(view)
        if self.last in self.batches:
            yield from self._constant(view, self.last, self.latest, at_end=True)

    def _stretches(self, view: StepView) -> None:
        for stretch in view.stretches:
            losses = [mean for name, mean in stretch.means.items() if name == "loss" or name.startswith("loss/")]
            if stretch.mode is Mode.EVAL and losses:
                self.evaluation = losses[0] if math.isfinite(losses[0]) else None

    def _evaluated_rows(self, batch: facts.BatchInputs) -> int:
        """Rows of the evaluation that has this batch: of all batches of its loader, where one is known."""
        rows = _rows(batch)
        return max([rows, *(rows * (each.get("batches") or 1) for each in self._loaders(batch).values())])

    def _loaders(self, batch: facts.BatchInputs) -> dict[str, dict[str, Any]]:
        """The loaders that may have given a batch: iterated over, and of its size."""
        known = {name: self.loaders[name] for name in batch.iterations or () if name in self.loaders}
        return {name: loader for name, loader in known.items() if _gives(loader, _rows(batch))}

    def _constant(
        self, view: StepView, key: str, loaders: dict[str, dict[str, Any]], *, at_end: bool = False
    ) -> Iterable[Finding]:
        steps = self.batches[key]["steps"]
        if self.captures < self.min_captures or steps < self.share * self.captures:
            return
        lengths = [loader.get("batches") for loader in loaders.values()]
        optimizer = view.latest_fact(facts.OptimizerSettings)
        if 1 in lengths or (optimizer is not None and optimizer.type == "LBFGS"):
            return  # the whole data set is one batch
        certain = bool(lengths) and None not in lengths
        batches = min((length for length in lengths if length), default=0)
        why = "" if certain else self._why(view, at_end=at_end, restarts=self._restarts(key, loaders))
        has = f"although the data loader has {batches} batches" if certain else why
        yield self.finding(
            view,
            severity=Severity.ERROR if certain else Severity.WARNING if why else Severity.INFO,
            subject="constant",
            value=steps / self.captures,
            limit=self.share,
            message=f"{steps} of {self.captures} captured steps had the same inputs, "
            f"{has or 'which is right for a whole data set'}",
            symptoms=("same_batch",) if has else ("same_inputs",) if self.evaluated > self.rows else (),
            evidence={"captures": self.captures, "steps": steps, **({"batches": batches} if certain else {})},
        )

    def _same_targets(self, view: StepView, batch: facts.BatchInputs) -> Iterable[Finding]:
        """A finding where the loaders show that sketched steps had one batch, although their inputs are augmented."""
        loaders = self._loaders(batch)
        batches = min((each.get("batches") or 0 for each in loaders.values()), default=0)
        for sketch in view.facts(facts.TargetSketch)[:1]:
            targets = repr((sketch.shape, sketch.counts, sketch.mean, sketch.variance, sketch.units))
            if targets != self.targets:
                self.alike.clear()
            self.alike.follow(view.mode_step, True)
            self.targets, self.distinct = targets, _are_distinct(sketch.counts)
        how = self._one_batch(view, batch, loaders) if self.alike.times() >= self.min_captures and batches > 1 else ""
        if not how:
            return
        yield self.finding(
            view,
            severity=Severity.ERROR,
            subject="first batch",
            value=float(self.alike.times()),
            limit=float(self.min_captures),
            message=f"{how} {batches} batches; {self.alike.times()} sketched steps had the same targets, up to step "
            f"{view.mode_step}",
            symptoms=("same_batch",),
            evidence={"captures": self.captures, "steps": self.alike.times(), "batches": batches},
            since=self.alike.since(),
        )

    def _one_batch(self, view: StepView, batch: facts.BatchInputs, loaders: dict[str, dict[str, Any]]) -> str:
        """How loaders gave the same batch to each step so far, the beginning of a message; "" where they did not."""
        begun = [(batch.iterations or {})[name] for name in loaders]
        in_order = all(each.get("sampler") == "SequentialSampler" for each in loaders.values())
        if in_order and all(count > view.model_step > 0 for count in begun):
            return "each step begins the data loader again, which reads in order and has"
        ended = all(view.model_step >= _PASSES * (each.get("batches") or math.inf) for each in loaders.values())
        if ended and all(count == 1 for count in begun) and self.distinct:
            return "this is beyond the end of the data loader, which was begun once and has"
        return ""

    def _restarts(self, key: str, loaders: dict[str, dict[str, Any]]) -> bool:
        """Whether each step begins an iteration over the only loader, which gives a full batch each time."""
        seen = self.batches[key]
        return any(seen["iterations"].get(name, 0) > seen["step"] > 0 for name in loaders)

    def _why(self, view: StepView, *, at_end: bool, restarts: bool) -> str:
        """Why the same inputs are not a whole data set, where no loader says so; "" where they may be one."""
        made, part = self.made >= self.share * (self.captures - 1), self.parts >= self.share * self.captures
        if restarts:
            return "and each step has begun the data loader again, which gave it a full batch"
        if made and part:
            return f"{self.rows} rows that each step takes again from a larger tensor"
        training = signals.losses(view, 16)
        if not (made or part) or not at_end or self.evaluation is None or not len(training):
            return ""
        loss = float(median(training.tolist()))
        if self.evaluated <= self.rows or self.evaluation <= _MEMORIZED * max(loss, 0.0):
            return ""
        return (
            f"{self.rows} rows, while an evaluation has {self.evaluated}; the training loss is {loss:.3g}, and the "
            f"last one of an evaluation {self.evaluation:.3g}"
        )

    def _again(
        self, view: StepView, batch: facts.BatchInputs, loaders: dict[str, dict[str, Any]], distance: int
    ) -> Iterable[Finding]:
        lengths = [loader.get("batches") or 0 for loader in loaders.values()]
        sizes = [loader.get("batch_size") or 0 for loader in loaders.values()]
        # A loop over the batches of one iteration, as by itertools.cycle, comes back after all of them.
        if distance * self.per_step >= min(lengths) or min(sizes) < self.min_batch:
            return
        self.again += 1
        if self.again < self.repeats:
            return
        yield self.finding(
            view,
            subject="again",
            value=float(self.again),
            limit=float(self.repeats),
            message=f"the inputs of step {view.mode_step} were those of a step {distance} before, in one epoch of "
            f"{min(lengths)} batches; this happened at {self.again} of {self.captures} captured steps",
            symptoms=("same_batch",),
            evidence={"captures": self.captures, "steps": self.again, "batches": min(lengths), "distance": distance},
        )


def _are_distinct(counts: Any) -> bool:
    """Whether another batch is unlikely to have these numbers of samples by class.

    Those of a GAN or a contrast of samples are the same for all batches.
    """
    rows = [number for _, number in counts or ()]
    return len(rows) > 2 and len(set(rows)) > 1


def _rows(batch: facts.BatchInputs) -> int:
    """Rows of the first input of a batch that has any."""
    return next((int(shape[0]) for shape in batch.shapes.values() if shape), 0)


def _gives(loader: dict[str, Any], size: int) -> bool:
    """Whether a loader may give a batch of this size; the last one of an epoch may be smaller."""
    full = loader.get("batch_size")
    return full == size or (loader.get("batches") == 1 and full is not None and full > size)
