"""What autograd's graph shows of a loss and of a model, as facts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facts_of import facts, watching
from watchglass.records.facts import ForwardLayers
from watchglass.rules.graph.forward import ForwardGraph

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def graphs_of(
    run: Path, model: nn.Module, loss: Loss, steps: int = 1, kinds: tuple[str, ...] = ("loss_graph", "forward_graph")
) -> None:
    torch.manual_seed(0)
    with watching(model, run, facts=kinds):
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, torch.randn(16, 6), torch.randint(3, (16,))).backward()
            optimizer.step()


def perceptron(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), *last)


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, 3).float()


def binary_by_hand(output: Tensor, labels: Tensor) -> Tensor:
    share = torch.sigmoid(output)
    target = one_hot(labels)
    return -(target * share.log() + (1 - target) * (1 - share).log()).mean()


def focal(output: Tensor, labels: Tensor) -> Tensor:
    logs = F.log_softmax(output, 1).gather(1, labels[:, None])
    return -((1 - logs.exp()) ** 2 * logs).mean()


@pytest.mark.parametrize(
    ("loss", "operations"),
    [
        (lambda out, y: F.cross_entropy(out, y), "linear log_softmax nll_loss"),
        (lambda out, y: -(one_hot(y) * out.softmax(1).log()).sum(1).mean(), "linear softmax log mul sum mean"),
        (lambda out, y: ((out - one_hot(y)) ** 2).mean(), "linear sub pow mean"),
        (binary_by_hand, "linear sigmoid log mul sub log mul add mean"),
        (focal, "linear log_softmax exp sub pow mul mean"),
        (lambda out, y: F.mse_loss(out[:, 0], y.float(), reduction="sum"), "linear mse_loss"),
    ],
)  # fmt: skip
def test_operations_from_the_last_layer_to_the_loss_are_listed(run_path: Path, loss: Any, operations: str) -> None:
    graphs_of(run_path, perceptron(), lambda model, x, y: loss(model(x), y))
    (found,) = facts(run_path, "loss_graph")
    (term,) = found["terms"]
    assert sorted(each["operation"] for each in term["operations"]) == sorted(operations.split())
    assert (term["kind"], abs(term["coefficient"]), term["whole"]) == ("data", 1.0, True)
    assert term["operations"][0] == {"operation": "linear", "shape": [16, 3], "layer": "2.weight"}
    assert found.get("unreached") is None


def test_a_scaler_that_is_switched_off_leaves_the_loss_its_last_operation(run_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    graphs_of(run_path, perceptron(), lambda model, x, y: scaler.scale(F.cross_entropy(model(x), y)))
    (found,) = facts(run_path, "loss_graph")
    assert [each["operation"] for each in found["terms"][0]["operations"]] == ["linear", "log_softmax", "nll_loss"]


def test_terms_have_their_weights_and_what_they_hang_on(run_path: Path) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        penalty = sum(each.square().sum() for each in model.parameters())
        return 0.5 * F.cross_entropy(model(x), y) + 1e-3 * penalty / 2

    graphs_of(run_path, nn.Linear(6, 3), loss)
    (found,) = facts(run_path, "loss_graph")
    assert [(term["kind"], term.get("coefficient")) for term in found["terms"]] == [
        ("data", 0.5), ("penalty", 5e-4), ("penalty", 5e-4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("normalized", "axis", "of_output"),
    [
        (lambda out: F.log_softmax(out, 0), 0, 0),
        (lambda out: F.log_softmax(out, -1), 1, 1),
        (lambda out: F.log_softmax(out.T, 1).T, 1, 0),
    ],
)
def test_the_axis_of_a_softmax_is_known_in_the_output(
    run_path: Path, normalized: Any, axis: int, of_output: int
) -> None:
    graphs_of(run_path, perceptron(), lambda model, x, y: F.nll_loss(normalized(model(x)), y))
    (found,) = facts(run_path, "loss_graph")
    (softmax,) = [each for each in found["terms"][0]["operations"] if each["operation"] == "log_softmax"]
    assert (softmax["axis"], softmax.get("axis_of_output")) == (axis, of_output)


class Autoencoder(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
        self.decoder = nn.Linear(4, 6)
        self.between = between

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.decoder(self.between(self.encoder(inputs)))
        return output


@pytest.mark.parametrize("cut", [Tensor.detach, lambda code: torch.tensor(code.tolist())], ids=["detach", "item"])
def test_parameters_out_of_reach_are_named(run_path: Path, cut: Callable[[Tensor], Tensor]) -> None:
    graphs_of(run_path, Autoencoder(cut), lambda model, x, y: F.mse_loss(model(x), x))
    (found,) = facts(run_path, "loss_graph")
    assert found["unreached"] == {
        "count": 2, "names": ["encoder.0.weight", "encoder.0.bias"], "ran": 2,
        "cut_before": "decoder",
    }  # fmt: skip


def test_layers_and_what_lies_between_them(run_path: Path) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.inner, self.outer = (
                nn.Linear(6, 8),
                nn.LayerNorm(8),
                nn.Linear(8, 9),
                nn.Linear(9, 8),
            )
            self.head = nn.Linear(8, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.stem(inputs)
            output: Tensor = self.head(hidden + self.outer(torch.tanh(self.inner(self.norm(hidden)))))
            return output

    graphs_of(run_path, Residual(), lambda model, x, y: F.cross_entropy(model(x), y))
    (found,) = facts(run_path, "forward_graph")
    assert found["layers"] == [
        ["stem.weight", "linear", 6, 8], ["inner.weight", "linear", 8, 9], ["outer.weight", "linear", 9, 8],
        ["head.weight", "linear", 8, 3],
    ]  # fmt: skip
    assert found["pairs"] == [[0, 1, "layer_norm"], [1, 2, "tanh"], [2, 3, "residual"]]
    assert (found["depth"], found["residuals"], found["normalizations"]) == (4, 1, 1)


class Unrolled(nn.Module):
    """A cell that a script calls for each of some steps in time, and a head for the last one or for each."""

    def __init__(self, cells: int, *, every: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.Linear(1 + 8 if at == 0 else 16, 8) for at in range(cells))
        self.head, self.every = nn.Linear(8, 3), every

    def forward(self, inputs: Tensor) -> Tensor:
        states = [inputs.new_zeros(len(inputs), 8) for _ in self.cells]
        outputs = []
        for at in range(inputs.shape[1]):
            taken = inputs[:, at : at + 1]
            for number, cell in enumerate(self.cells):
                states[number] = taken = torch.tanh(cell(torch.cat([taken, states[number]], 1)))
            outputs.append(self.head(taken))
        return torch.stack(outputs).mean(0) if self.every else outputs[-1]


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("cells", [1, 2])
def test_steps_in_time_of_a_cell_are_not_depth(run_path: Path, cells: int, every: bool) -> None:
    graphs_of(run_path, Unrolled(cells, every=every), lambda model, x, y: F.cross_entropy(model(x), y))
    (found,) = facts(run_path, "forward_graph")
    layers = ForwardLayers.from_data(found)
    assert layers is not None
    graph = ForwardGraph(layers)
    assert found["layers_count"] > 6 * cells
    assert (found["depth"], graph.shortest()) == (cells + 1, cells + 1)
    assert graph.saturating_in_a_row("cells.0.weight", "head.weight") == ([] if cells == 1 else ["tanh", "tanh"])


def test_gates_and_attention_are_products(run_path: Path) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.gate, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.head(self.value(inputs) * torch.softmax(self.gate(inputs), -1))
            return output

    graphs_of(run_path, Gated(), lambda model, x, y: F.cross_entropy(model(x), y))
    (found,) = facts(run_path, "forward_graph")
    assert sorted(between for _, _, between in found["pairs"]) == ["product", "softmax product"]


def test_batch_normalisation_over_two_values_shows(run_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    graphs_of(run_path, model, lambda model, x, y: F.cross_entropy(model(x[:2]), y[:2]))
    (found,) = facts(run_path, "forward_graph")
    assert found["batch_normalizations"] == [{"name": "1.weight", "values": 2, "batch": 2}]


def test_what_stays_the_same_is_recorded_once_and_nothing_keeps_the_graph(run_path: Path) -> None:
    alive: list[weakref.ref[Any]] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        output = model(x)
        alive.append(weakref.ref(output))
        return F.cross_entropy(output, y)

    graphs_of(run_path, perceptron(), loss, 9)
    assert len(facts(run_path, "loss_graph")) == len(facts(run_path, "forward_graph")) == 1
    gc.collect()
    assert not [each for each in alive if each() is not None]


def test_a_loss_that_changes_is_recorded_again(run_path: Path) -> None:
    steps = iter(range(16))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y) if next(steps) < 5 else F.cross_entropy(model(x).softmax(1), y)

    graphs_of(run_path, perceptron(), loss, 16)
    assert [len(found["terms"][0]["operations"]) for found in facts(run_path, "loss_graph")] == [3, 4]


def test_saved_tensors_that_hooks_packed_are_left_alone(run_path: Path) -> None:
    unpacked = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpacked.append):
            return F.cross_entropy(model(x), y) * torch.tensor(2.0)

    # Only the backward itself unpacks, and fails for want of what it gets.
    with pytest.raises(TypeError, match="unpack_hook"):
        graphs_of(run_path, perceptron(), loss)
    assert len(unpacked) == 1


def test_nested_tensors_have_no_shapes_and_end_nothing(run_path: Path) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        parts = torch.nested.nested_tensor([x[:5], x[5:]], layout=torch.jagged)
        return model(parts).values().square().mean()

    graphs_of(run_path, nn.Linear(6, 3), loss, 3)
    assert len(facts(run_path, "loss_graph")) == 1


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def test_functions_of_python_hide_what_may_be_out_of_reach(run_path: Path) -> None:
    model = Autoencoder(lambda code: Opaque.apply(code.detach()) + 0 * code)
    graphs_of(run_path, model, lambda model, x, y: F.mse_loss(model(x), x))
    (found,) = facts(run_path, "loss_graph")
    assert found.get("unreached") is None
    graphs_of(run_path / "again", Autoencoder(Opaque.apply), lambda model, x, y: F.mse_loss(model(x), x))
    (found,) = facts(run_path / "again", "loss_graph")
    assert (found["opaque"], found.get("unreached")) == (["OpaqueBackward"], None)


@pytest.mark.parametrize("joined", [False, True])
def test_inputs_whose_derivatives_a_loss_holds_are_no_parameters(run_path: Path, joined: bool) -> None:
    """The collocation points of a physics-informed network; a scale that a script made itself is one."""
    points, scale = torch.rand(16, 1, requires_grad=True), torch.ones(3, requires_grad=True)
    model = nn.Sequential(nn.Linear(2 if joined else 1, 8), nn.Tanh(), nn.Linear(8, 3))
    with watching(model, run_path, facts=("unheld_parameters",)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            outputs = scale * model(torch.cat([points, torch.zeros(16, 1)], 1) if joined else points)
            (slope,) = torch.autograd.grad(outputs.sum(), points, create_graph=True)
            ((slope - points).square().mean() + outputs.square().mean()).backward()
            optimizer.step()
    shapes = [[row["shape"] for row in data["parameters"]] for data in facts(run_path, "unheld_parameters")]
    assert shapes == [[[3]], [[3]], [[3]]]


def test_parameters_that_no_optimizer_updates_are_described(run_path: Path) -> None:
    first, model, idle = nn.Linear(6, 6), perceptron(), nn.Linear(3, 3)
    with watching(model, run_path, facts=("unheld_parameters",)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        torch.optim.SGD(idle.parameters(), lr=0.01)
        for step in range(4):
            if step == 3:
                optimizer.add_param_group({"params": [*first.parameters(), *idle.parameters()]})
            F.cross_entropy(idle(model(first(torch.randn(16, 6)))), torch.randint(3, (16,))).backward()
            optimizer.step()
    *found, last = facts(run_path, "unheld_parameters")
    assert [data["count"] for data in found] == [4, 4, 4]
    assert (last["count"], last["parameters"]) == (0, [])
    rows = {tuple(row["shape"]): row for row in found[-1]["parameters"]}
    assert rows[6, 6]["looks"] == 3
    assert rows[6, 6]["sampled"] == 36
    assert rows[6, 6]["max"] == pytest.approx(first.weight.max().item(), abs=0.1)


def test_parameters_of_an_optimizer_that_never_steps_are_described_also_within_a_trained_model(run_path: Path) -> None:
    model = perceptron()
    with watching(model, run_path, facts=("unheld_parameters",)):
        first, last = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[0], model[-1]))
        for step in range(8):
            F.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))).backward()
            last.step()
            if step == 6:
                first.step()
    *found, later = facts(run_path, "unheld_parameters")
    assert [{row["optimizer_type"] for row in data["parameters"]} for data in found] == [{"SGD"}] * len(found)
    assert found[-1]["parameters"][0]["name"] == "0.weight"
    assert later["stepped"] == found[-1]["parameters"][0]["optimizer"]
