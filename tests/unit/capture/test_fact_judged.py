"""What losses judge: sketches of outputs and targets, of the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facts_of import classifier, facts, facts_by_step, watching
from watchglass import Mode
from watchglass.capture.facts.input_sketches import Correlations
from watchglass.capture.planning.sketch_pace import SketchPace
from watchglass.capture.pytorch.facts.copies import sample, table_sample

SKETCHES = ("input_sketch", "output_sketch", "target_sketch")
Loss = Callable[[Tensor], Tensor]


class Gives(nn.Module):
    """Returns a fixed output, which no update changes."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output + self.bias


def judged(run: Path, output: Tensor, loss: Loss) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sketches of one step."""
    model = Gives(output)
    with watching(model, run, facts=SKETCHES):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss(model(torch.randn(4, 3))).backward()
        optimizer.step()
    return facts(run, "output_sketch")[0], facts(run, "target_sketch")[0]


def test_classes_are_counted_and_errors_are_known_by_class(run_path: Path) -> None:
    labels = torch.tensor([0, 0, 1, 2, -100])
    logits = 20 * F.one_hot(torch.tensor([0, 1, 1, 2, 2]), 3).float()
    output, target = judged(run_path, logits, lambda out: F.cross_entropy(out, labels, label_smoothing=0.1))
    assert (target["kind"], target["counts"], target["distinct"]) == ("classes", [[0, 2], [1, 1], [2, 1]], 3)
    assert target["ignored"] == pytest.approx(0.2)
    assert (target["columns"], target["outside"], target["smoothing"]) == (3, 0, 0.1)
    assert sorted(output["confusion"]) == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [2, 2, 1]]
    assert output["right"] == 0.75
    assert output["predicted"] == [[1, 2], [2, 2], [0, 1]]
    assert output["entropy"] == pytest.approx(0, abs=1e-4)
    np.testing.assert_allclose(output["units"]["mean"], [4, 8, 8])


def test_rows_of_outputs_and_targets_belong_together_wherever_classes_are(run_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 30, (8, 20, 25))
    logits = 20 * F.one_hot(labels, 30).float().permute(0, 3, 1, 2)
    output, target = judged(run_path, logits, lambda out: F.cross_entropy(out, labels))
    assert output["right"] == 1.0
    assert (target["rows"], output["rows"]) == (1024, 1024)
    assert output["shape"] == [8, 30, 20, 25]


def test_of_a_large_vocabulary_few_rows_are_copied(run_path: Path) -> None:
    labels = torch.arange(300) * 100
    logits = 20 * F.one_hot(labels, 30_000).float()
    output, target = judged(run_path, logits, lambda out: F.cross_entropy(out, labels))
    assert (output["rows"], target["rows"], output["right"]) == (4, 300, 1.0)
    assert "confusion" not in output
    assert "units" not in output


def test_a_squared_error_stands_beside_that_of_the_best_constant(run_path: Path) -> None:
    torch.manual_seed(0)
    targets = torch.randn(64, 2) * torch.tensor([1.0, 3.0]) + 5
    output, target = judged(run_path, targets + 0.1, lambda out: F.mse_loss(out, targets))
    assert output["squared_error"] == pytest.approx(0.01, rel=0.01)
    assert output["constant_error"] == pytest.approx(float(targets.var(0, correction=0).mean()), rel=1e-5)
    assert output["correlation"] == pytest.approx(1)
    assert (target["kind"], target["whole"]) == ("values", False)
    np.testing.assert_allclose(target["units"]["std"], targets.std(0, correction=0), rtol=1e-5)


def test_equal_targets_of_a_loss_that_the_script_computes_have_no_spread(run_path: Path) -> None:
    torch.manual_seed(0)
    output, _ = judged(run_path, torch.randn(64, 1), lambda out: ((out - 1) ** 2).mean())
    assert output["squared_error"] > 1
    assert output["constant_error"] == 0


@pytest.mark.parametrize(
    ("output", "loss", "kind"),
    [
        (torch.randn(8, 1), lambda out: F.binary_cross_entropy_with_logits(out, (out > 0).float().detach()), "labels"),
        (torch.randn(8, 3), lambda out: F.cross_entropy(out, F.one_hot(out.argmax(1), 3).float()), "one_hot"),
        (torch.randn(8, 3), lambda out: F.cross_entropy(out, out.detach().softmax(1)), "shares"),
        (
            torch.randn(8, 3),
            lambda out: F.kl_div(out.log_softmax(1), out.detach().softmax(1), reduction="sum"),
            "values",
        ),
        (torch.randn(8), lambda out: F.l1_loss(out, torch.arange(8.0)), "values"),
    ],
)
def test_targets_are_of_a_kind(run_path: Path, output: Tensor, loss: Loss, kind: str) -> None:
    assert judged(run_path, output, loss)[1]["kind"] == kind


def test_binary_errors_are_known_by_class(run_path: Path) -> None:
    labels = torch.tensor([0.0, 0, 1, 1, 1])
    logits = torch.tensor([-1.0, 2, 3, -3, 1])
    output, target = judged(run_path, logits, lambda out: F.binary_cross_entropy_with_logits(out, labels))
    assert output["confusion"] == [[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 2]]
    assert sorted(target["counts"]) == [[0, 2], [1, 3]]


def test_an_output_that_no_loss_function_judges_is_sketched_too(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, facts=SKETCHES):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(16, 6)).exp().mean().backward()
        optimizer.step()
    assert [(each["function"], len(each["units"]["std"])) for each in facts(run_path, "output_sketch")] == [("", 3)]
    assert not facts(run_path, "target_sketch")


class Answers(nn.Module):
    """Returns an output for its inputs, which no update changes."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = answer
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.answer(inputs) + self.bias


def neighbours(run: Path, inputs: Tensor, answer: Callable[[Tensor], Tensor], loss: Loss) -> dict[str, Any] | None:
    """What the sketch of one step says of neighbours among the samples."""
    model = Answers(answer)
    with watching(model, run, facts=SKETCHES):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss(model(inputs)).backward()
        optimizer.step()
    found: dict[str, Any] | None = facts(run, "output_sketch")[0].get("neighbours")
    return found


@pytest.mark.parametrize("samples", [64, 3000])
@pytest.mark.parametrize("handwritten", [False, True])
def test_neighbours_tell_what_a_model_has_not_learned_from_noise(
    tmp_path: Path, samples: int, handwritten: bool
) -> None:
    torch.manual_seed(0)
    inputs = torch.rand(samples, 2) * torch.tensor([1.0, 100.0])
    follows = torch.sin(6 * inputs[:, :1])
    targets = follows + 0.1 * torch.randn(samples, 1)

    def loss(out: Tensor) -> Tensor:
        return ((out - targets) ** 2).mean() if handwritten else F.mse_loss(out, targets)

    ignorant = neighbours(tmp_path / "ignorant", inputs, lambda x: torch.zeros(samples, 1), loss)
    informed = neighbours(tmp_path / "informed", inputs, lambda x: torch.sin(6 * x[:, :1]), loss)
    assert ignorant is not None
    assert informed is not None
    assert ignorant["rows"] == informed["rows"] == min(samples, 128)
    assert ignorant["targets"] > 0.7
    assert ignorant["errors"] > 0.7
    assert informed["targets"] == pytest.approx(ignorant["targets"])
    assert abs(informed["errors"]) < 0.35


@pytest.mark.parametrize("shuffled", [False, True])
def test_labels_that_do_not_belong_to_their_inputs_differ_between_neighbours(run_path: Path, shuffled: bool) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (100,))
    inputs = F.one_hot(labels, 3) + 0.1 * torch.randn(100, 3)
    labels = labels[torch.randperm(100)] if shuffled else labels
    found = neighbours(run_path, inputs, lambda x: torch.zeros(100, 3), lambda out: F.cross_entropy(out, labels))
    assert found is not None
    assert (found["targets"] < 0.3) if shuffled else (found["targets"] > 0.9)


@pytest.mark.parametrize(
    ("inputs", "output", "target"),
    [
        # A sample that was drawn twice is no neighbour.
        (torch.ones(32, 4), torch.zeros(32, 2), torch.randn(32, 2)),
        (torch.randn(32, 4), torch.zeros(32, 2), torch.ones(32, 2)),
        (torch.randn(4, 4), torch.zeros(4, 2), torch.randn(4, 2)),
        # Rows are positions, or not those of the inputs.
        (torch.randn(32, 4), torch.zeros(16, 2), torch.randn(16, 2)),
        (torch.randn(32, 4), torch.zeros(32, 5, 6), torch.zeros(32, 6, dtype=torch.int64)),
    ],
)
def test_without_neighbours_nothing_is_compared(run_path: Path, inputs: Tensor, output: Tensor, target: Tensor) -> None:
    function = F.mse_loss if target.is_floating_point() else F.cross_entropy
    assert neighbours(run_path, inputs, lambda x: output, lambda out: function(out, target)) is None


def test_infinite_outputs_of_one_sample_leave_the_sketch_of_the_others(run_path: Path) -> None:
    output = torch.zeros(32, 5).index_fill(0, torch.tensor([3]), torch.inf)
    labels = torch.arange(32) % 5
    assert neighbours(run_path, torch.randn(32, 4), lambda x: output, lambda out: F.cross_entropy(out, labels)) is None
    (found,) = facts(run_path, "output_sketch")
    assert (found["nonfinite"], found["loss"]) == (1 / 32, pytest.approx(math.log(5)))


def test_evaluations_are_sketched_although_nothing_else_is_captured_there(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, facts=SKETCHES):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(torch.randn(9, 6)), torch.randint(0, 3, (9,)))
    for kind in SKETCHES:
        assert [data["shape"][0] for data in facts_by_step(run_path, kind, Mode.EVAL).values()] == [9, 9, 9]
        assert [data["shape"][0] for data in facts_by_step(run_path, kind).values()] == [16, 16, 16]


@pytest.mark.parametrize(("steps", "least", "most"), [(100, 10, 50), (5000, 50, 100)])
def test_sketches_become_rarer(steps: int, least: int, most: int) -> None:
    pace = SketchPace()
    assert least <= sum(pace.due(Mode.TRAIN, 0, step) for step in range(steps)) <= most
    # Where a fixed interval captures, as many as fit.
    pace = SketchPace()
    assert sum(pace.due(Mode.TRAIN, 0, step) for step in range(0, 700, 7)) > 30


def table(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (100 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))).to(dtype)


@pytest.mark.parametrize("shape", [(32, 20), (400, 100)])
def test_correlations_are_those_of_whole_rows(shape: Sequence[int]) -> None:
    values = table(*shape)
    values[:, :5] = values[:, :1]
    values[:, 5] = 7
    correlations = Correlations()
    taken = table_sample("0", values) or sample("0", values)
    assert taken is not None
    sketch = taken.sketch(correlations)
    assert sketch is not None
    features, found = shape[1] - 1, sketch.correlations
    assert found is not None
    assert (found.features, found.rows) == (features, min(shape[0], 163))
    assert found.share == pytest.approx(5 * 4 / (features * (features - 1)))


def test_correlations_of_small_batches_are_over_several_of_them() -> None:
    correlations = Correlations()
    assert correlations.with_rows(table(9, 4).double().numpy()) is None
    found = correlations.with_rows(table(10, 4).double().numpy())
    assert found is not None
    assert (found.rows, found.share) == (19, 0.0)


def test_padding_is_the_token_at_the_end_or_beginning_of_rows() -> None:
    tokens = torch.randint(1, 50, (40, 120))
    for row in range(40):
        tokens[row, 30 + row :] = 0
    for side, given in (("right", tokens), ("left", tokens.flip(1))):
        taken = table_sample("0", given)
        assert taken is not None
        sketch = taken.sketch()
        assert sketch is not None
        padding = sketch.padding
        assert padding is not None
        assert (padding.token, padding.side, padding.rows) == (0, side, 1.0)
        assert padding.share == pytest.approx((90 - 19.5) / 120, abs=0.05)


def test_dropout_and_padding_tokens_are_known_of_the_model(run_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4, padding_idx=2)
            self.drop = nn.Dropout(0.4)
            self.none = nn.Dropout(0.0)
            self.cell = nn.LSTM(4, 4, 2, dropout=0.3, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            output: Tensor = self.cell(self.none(self.drop(self.table(tokens))))[0]
            return output

    model = Model()
    with watching(model, run_path, facts=()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randint(0, 9, (3, 5))).sum().backward()
            optimizer.step()
    data = facts(run_path, "model")[-1]
    assert (data["dropout"], data["padding"]) == ({"drop": 0.4, "cell": 0.3}, {"table": 2})


LABELS = torch.tensor([0, 2, 1, 2])


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: -out.log_softmax(1)[range(4), LABELS].mean(),
        lambda out: -out.log_softmax(-1).gather(1, LABELS[:, None]).mean(),
        lambda out: -(F.one_hot(LABELS, 3) * out.log_softmax(1)).sum(1).mean(),
    ],
)
def test_labels_of_a_handwritten_loss_are_found(run_path: Path, loss: Loss) -> None:
    output, target = judged(run_path, 9 * F.one_hot(LABELS, 3).float(), loss)
    assert (output["function"], output["right"]) == ("nll_loss", 1.0)
    assert target["counts"] == [[2, 2], [0, 1], [1, 1]]


TARGETS = torch.arange(12.0).view(6, 2)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: ((out - TARGETS) ** 2).mean(),
        lambda out: (TARGETS - out).abs().sum() / 12,
        lambda out: ((out.reshape(-1) - TARGETS.reshape(-1)) * (out.reshape(-1) - TARGETS.reshape(-1))).mean() + 0.1,
    ],
)
def test_targets_of_a_handwritten_difference_are_found(run_path: Path, loss: Loss) -> None:
    output, target = judged(run_path, TARGETS + 0.5, loss)
    assert output["squared_error"] == pytest.approx(0.25, rel=1e-4)
    np.testing.assert_allclose(target["units"]["mean"], [5, 6], rtol=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        # Broadcast, a penalty on the output, and labels of another shape.
        lambda out: ((out[:, :1] - TARGETS) ** 2).mean(),
        lambda out: (out**2).mean(),
        lambda out: -out.log_softmax(1)[:2].mean(),
    ],
)
def test_what_is_no_target_is_not_taken_for_one(run_path: Path, loss: Loss) -> None:
    model = Gives(TARGETS + 0.5)
    with watching(model, run_path, facts=SKETCHES):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss(model(torch.randn(4, 3))).backward()
        optimizer.step()
    assert not facts(run_path, "target_sketch")
    assert facts(run_path, "output_sketch")[0]["function"] == ""
