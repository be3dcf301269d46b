"""Which tensors are found in what modules take and return, and that looking for them ends."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from watchglass.capture.pytorch.modules.nested_tensors import leaves_in, tensors_in

ONE, TWO, THREE = torch.ones(1), torch.ones(2), torch.ones(3)


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclasses.dataclass
class Record:
    logits: Tensor
    hidden: Any = None


@dataclasses.dataclass
class ModelOutput(collections.OrderedDict):  # type: ignore[type-arg]
    """As Hugging Face's: a dataclass that is a dictionary of the fields that are not None."""

    loss: Any = None
    logits: Any = None
    hidden_states: Any = None

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if getattr(self, each.name) is not None:
                self[each.name] = getattr(self, each.name)


def paths(value: Any, limit: int = 64) -> dict[str, int]:
    return {path: tensor.numel() for path, tensor in tensors_in(value, limit)}


def test_a_tensor_by_itself_has_no_path() -> None:
    assert paths(ONE) == {"": 1}
    assert paths(None) == paths("text") == paths(3) == {}


def test_every_container_names_its_members() -> None:
    assert paths((ONE, [TWO, {"deep": THREE}])) == {"0": 1, "1.0": 2, "1.1.deep": 3}
    assert paths({"a": ONE, 7: TWO}) == {"a": 1, "7": 2}
    assert paths(collections.UserDict(ids=ONE)) == {"ids": 1}
    assert paths(Pair(ONE, (TWO,))) == {"left": 1, "right.0": 2}
    assert paths(Record(ONE, Record(TWO))) == {"logits": 1, "hidden.logits": 2}
    assert paths(torch.max(torch.ones(2, 3), dim=1)) == {"0": 2, "1": 2}


def test_hugging_face_outputs_count_by_their_fields() -> None:
    output = ModelOutput(logits=TWO, hidden_states=(ONE, THREE))
    assert paths(output) == {"logits": 2, "hidden_states.0": 1, "hidden_states.1": 3}


def test_packed_sequences_are_found_in_what_a_recurrent_module_returns() -> None:
    output = nn.LSTM(2, 3)(pack_sequence([torch.zeros(4, 2), torch.zeros(1, 2)]))
    assert {"0.data", "0.batch_sizes", "1.0", "1.1"} <= set(paths(output))


def test_order_is_that_of_the_value_and_the_limit_holds() -> None:
    assert [path for path, _ in tensors_in([ONE] * 10, 3)] == ["0", "1", "2"]
    assert paths(ONE, 0) == {}


def test_values_that_hold_themselves_come_to_an_end() -> None:
    loop: dict[str, Any] = {"tensor": ONE}
    loop["left"] = loop["right"] = loop
    found = list(tensors_in(loop, 10**9))
    assert found[0] == ("tensor", ONE)
    assert len(found) <= 2**9
    wide: list[Any] = []
    wide += [wide] * 1000
    assert list(leaves_in(wide)) == []


def test_long_lists_are_not_walked_to_their_end() -> None:
    class Counting(list):  # type: ignore[type-arg]
        seen = 0

        def __iter__(self) -> Any:
            for item in super().__iter__():
                Counting.seen += 1
                yield item

    assert paths(Counting(range(1_000_000))) == {}
    assert Counting.seen <= 4096


def test_a_class_is_no_value() -> None:
    assert paths(Record) == {}
    assert list(leaves_in({"a": 1, "b": [2.0, None]})) == [("a", 1), ("b.0", 2.0), ("b.1", None)]
