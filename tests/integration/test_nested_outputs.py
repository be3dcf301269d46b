"""What modules return and are given inside data classes and plain dictionaries, in a real training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_twice import Watch, trained_twice

STEPS = 20


@dataclasses.dataclass
class Answer:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    note: str = "no tensor"
    nothing: Tensor | None = None


class Body(nn.Module):
    """Returns a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 8)

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        one = torch.tanh(self.first(batch["x"]))
        two = torch.tanh(self.second(one))
        return {"last": two * 1.0, "all": [one * 1.0, {"deep": two + one}], "size": len(one)}


class Returning(nn.Module):
    """Returns a data class of what its body returned."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(8, 4)

    def forward(self, batch: dict[str, Any]) -> Answer:
        found = self.body(batch)
        return Answer(self.head(found["last"]) * 2.0, (found["all"][0] * 3.0, found["all"][1]["deep"] * 3.0))


def test_tensors_in_data_classes_and_dictionaries_are_found_by_their_paths(tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []

    def training(watch: Watch) -> Any:
        model = Returning()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model)
        seen.clear()
        for number in range(STEPS):
            inputs = torch.randn(6, 12, generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            answer = model({"x": inputs, "ids": ["a", "b"]})
            F.cross_entropy(answer.logits, inputs[:, :4].argmax(1)).backward()
            optimizer.step()
            assert (answer.note, answer.nothing) == ("no tensor", None)
            seen.append({
                "output.logits": answer.logits,
                "output.hidden.0": answer.hidden[0], "output.hidden.1": answer.hidden[1],
                "body.output.all.0": answer.hidden[0] / 3, "body.output.all.1.deep": answer.hidden[1] / 3,
                "body.input.0.x": inputs, "input.0.x": inputs,
            })  # fmt: skip
        return model, optimizer, seen

    run = trained_twice(tmp_path, training, save_raw=True, collections=("outputs", "inputs", "model_output"))
    found = {name for name in run.tensor_names() if name.startswith(("output.", "body.output", "body.input", "input."))}
    assert found == {*seen[0], "body.output.last"}
    for step in (0, STEPS - 1):
        for name, value in seen[step].items():
            np.testing.assert_allclose(run.tensor(name).value(step), value.detach().numpy(), rtol=1e-6, err_msg=name)
        # The body's last is what its head is given.
        last = run.tensor("body.output.last")
        np.testing.assert_array_equal(last.value(step), run.tensor("head.input.0").value(step))
        assert last.info.module_type == "Body"
