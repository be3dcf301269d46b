"""What is JSON in a frame: any value of a script is written, nonsense is named and costs nothing but itself."""

import json
import math
import threading
from collections.abc import Mapping

import numpy as np
import pytest

from watchglass import store
from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.records import (
    FACTS,
    RAW,
    Fact,
    Finding,
    Mode,
    Observation,
    Role,
    RuleStatus,
    Severity,
    Status,
    TensorInfo,
)


def payload(frame):
    (found,) = store.scan(frame).frames
    return found.payload


def decode_facts(payload, left_out=None):
    return store.facts_of(store.decode_rows(FACTS, payload, left_out))


def test_facts_of_any_kind_of_value_are_written():
    class Odd:
        def __str__(self):
            return "odd"

    data = {"nan": math.nan, "np": np.float32(1), "array": np.arange(2), "odd": Odd(), "s": "\ud800", 1: (Role.LOSS,)}
    data["self"] = data
    (fact,) = decode_facts(payload(store.encode_facts([Fact("k", 0, "", {})])))
    assert fact.data == {}
    frame = store.encoding.json_payloads.json_frame(
        store.FrameKind.FACTS, [{"kind": "k", "global_step": 0, "source": "", "data": data}]
    )
    (fact,) = decode_facts(payload(frame))
    assert fact.data["nan"] == "NaN"
    assert fact.data["np"] == 1.0
    assert fact.data["array"] == [0, 1]
    assert fact.data["odd"] == "odd"
    assert fact.data["1"] == ["loss"]


class Broken:
    """An object of a script that cannot be shown, copied or walked."""

    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __deepcopy__ = __iter__ = __str__


class BrokenMapping(Mapping):
    def __getitem__(self, key):
        raise RuntimeError("no")

    def __iter__(self):
        raise RuntimeError("no")

    def __len__(self):
        return 1


def test_facts_that_cannot_be_shown_never_fail():
    data = {"big": 10**5000, "small": -(10**5000), "long": 2**200, "broken": Broken(), "mapping": BrokenMapping()}
    data |= {"list": [Broken(), 1], Broken(): 2, "lock": threading.Lock()}
    data["self"] = data
    (fact,) = decode_facts(payload(store.encode_facts([Fact("k", 3, "s", data)])))
    assert int(fact.data["big"], 16) == 10**5000
    assert int(fact.data["small"], 16) == -(10**5000)
    assert fact.data["long"] == 2**200
    assert fact.data["broken"] == "<Broken>"
    assert fact.data["mapping"] == "<BrokenMapping>"
    assert fact.data["list"] == ["<Broken>", 1]
    assert fact.data["<Broken>"] == 2
    assert "lock" in fact.data["lock"]
    assert (fact.kind, fact.global_step, fact.source) == ("k", 3, "s")


def test_facts_that_hold_themselves_are_cut_where_they_do():
    data = {"n": 1, "shared": [1]}
    data["list"] = [data["shared"], data, data]
    data["again"] = data["self"] = data
    (fact,) = decode_facts(payload(store.encode_facts([Fact("k", 3, "s", data)])))
    assert fact.data["n"] == 1
    assert fact.data["list"][0] == fact.data["shared"] == [1]
    assert all(isinstance(cut, str) for cut in (fact.data["self"], fact.data["again"], *fact.data["list"][1:]))


def test_no_more_json_is_written_than_is_read():
    empty = len(payload(store.encode_facts([Fact("k", 0, "", {"text": ""})])))
    most = [Fact("k", 0, "", {"text": "x" * ((32 << 20) - empty)})]
    assert decode_facts(payload(store.encode_facts(most))) == most
    with pytest.raises(InvalidValueError, match="several frames"):
        store.encode_facts([Fact("k", 0, "", {"text": most[0].data["text"] + "x"})])


def decode_raw(payload, left_out=None):
    return store.decode_rows(RAW, payload, left_out).tolist()


DECODERS = [
    store.decode_catalog, decode_facts, store.decode_finding, store.decode_header, store.decode_lifecycle,
    store.decode_observation, decode_raw, store.decode_status,
]  # fmt: skip

#: Those of lists, each with a sound row.
LISTS = {
    store.decode_catalog: TensorInfo(1, "a", Role.WEIGHT).to_json(),
    decode_facts: Fact("k", 0, "s", {"x": 1}).to_json(),
    decode_raw: {"global_step": 1, "tensor_id": 2, "file": "f", "key": "k"},
}


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("nonsense", [b"", b"\xff", b"[", b"7", b"[" * 100_000, b'{"a": 1', b"[[]]" * 2])
def test_json_nonsense_is_damaged_data(decode, nonsense):
    with pytest.raises(DamagedDataError):
        decode(nonsense)


@pytest.mark.parametrize("decode", [decode for decode in DECODERS if decode not in LISTS])
@pytest.mark.parametrize("nonsense", [b"[[]]", b'["x"]', b'[{"tensor_id": "1"}]'])
def test_a_list_where_an_object_belongs_is_damaged_data(decode, nonsense):
    with pytest.raises(DamagedDataError):
        decode(nonsense)


@pytest.mark.parametrize(("decode", "sound"), LISTS.items())
@pytest.mark.parametrize("nonsense", [[], "x", None, {}, {"tensor_id": "1"}, {"kind": 1}])
def test_a_row_of_nonsense_is_left_out_and_its_neighbours_are_read(decode, sound, nonsense):
    left_out = []
    found = decode(json.dumps([sound, nonsense, sound]).encode(), left_out)
    assert len(found) == 2
    assert found[0] == found[1] == decode(json.dumps([sound]).encode())[0]
    assert len(left_out) == 1
    assert isinstance(left_out[0], DamagedDataError)


@pytest.mark.parametrize(("decode", "sound"), LISTS.items())
def test_a_list_of_little_but_nonsense_is_damaged_data(decode, sound):
    decode(json.dumps([sound] + [7] * 1000).encode())
    with pytest.raises(DamagedDataError, match="more than 1000 times"):
        decode(json.dumps([sound] + [7] * 1001).encode())


@pytest.mark.parametrize(
    "row",
    [{"tensor_id": -1}, {"tensor_id": 2**32}, {"name": 3}, {"shape": [-1]}, {"shape": [1.5]}, {"role": "spy"},
     {"layer_index": "0"}, {"collections": [1]}, {"model": -1}, {"model": 2**16}, {"model": "1"}, {"model": True}],
)  # fmt: skip
def test_a_catalog_row_of_the_wrong_types_is_left_out(row):
    sound, left_out = TensorInfo(1, "a", Role.WEIGHT), []
    rows = [{**sound.to_json(), **row}, sound.to_json()]
    assert store.decode_catalog(json.dumps(rows).encode(), left_out) == [sound]
    assert ["a catalog row" in str(error) for error in left_out] == [True]
    again: list[DamagedDataError] = []
    assert store.decode_catalog(json.dumps(rows).encode(), again) == [sound]  # as another worker wrote it
    assert list(map(str, again)) == list(map(str, left_out))


FOUND = Finding("a", "R", Severity.INFO, 0, 0, 1, Mode.TRAIN, "worker_0", ("x",), None, None, "m").to_json()


@pytest.mark.parametrize(
    ("decode", "sound", "change"),
    [
        *((store.decode_finding, FOUND, change) for change in (
            {"rule": 1}, {"message": None}, {"tensors": [1]}, {"tensors": 1}, {"causes": [[]]}, {"step": 1.5},
            {"count": "1"}, {"step": True}, {"evidence": []}, {"attempt": None}, {"value": []}, {"mode": "LATER"},
        )),
        *((store.decode_status, RuleStatus("R", Status.ERROR).to_json(), change) for change in (
            {"rule": 1}, {"reason": {}}, {"status": 1}, {"status": "Later"}, {"parameters": []},
        )),
        *((store.decode_observation, Observation("k", 0, (0, 0, 0)).to_json(), change) for change in (
            {"kind": 1}, {"attempt": "0"}, {"after": [1, 2]}, {"after": [0, 0, "0"]}, {"after": 1}, {"data": 1},
        )),
    ],
)  # fmt: skip
def test_records_of_the_journal_have_the_types_that_they_declare(decode, sound, change):
    decode(json.dumps(sound).encode())
    with pytest.raises(DamagedDataError, match="malformed"):
        decode(json.dumps({**sound, **change}).encode())


def test_of_a_key_that_stands_twice_the_last_counts():
    (row,) = store.decode_catalog(b'[{"tensor_id": 1, "name": "a", "role": "weight", "name": "b"}]')
    assert row.name == "b"
