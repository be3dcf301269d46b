"""Raw tensors: written without copies, read by the safetensors package and by ranges; nonsense is named."""

import json
import tracemalloc

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load

from watchglass.errors import DamagedDataError, InvalidValueError, UnknownNameError
from watchglass.records import Role, TensorInfo
from watchglass.store import (
    LocalStore,
    RawTensor,
    as_numbers,
    decode_catalog,
    encode_catalog,
    is_storable,
    load_tensor,
    scan,
    write_tensors,
)

GIVEN = {
    1: np.arange(6, dtype="f4").reshape(2, 3).T, 2: np.array(True), 3: np.arange(3, dtype=">i8"),
    4: np.empty((0, 3), "f2"), 5: np.arange(4, dtype="u2")[::2], 6: np.array([1 + 2j], "c8"),
}  # fmt: skip


def read_tensor(store, path, key):
    return as_numbers(load_tensor(store, path, key))


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def written(store, *tensors, seq=0):
    """Path of a file that holds the tensors of step 7."""
    rows = write_tensors(store, 0, "worker_0", seq, [(7, tensor) for tensor in tensors])
    assert [(row["global_step"], row["tensor_id"]) for row in rows] == [(7, tensor.tensor_id) for tensor in tensors]
    assert {row["key"] for row in rows} == {f"7/{tensor.tensor_id}" for tensor in tensors}
    (path,) = {row["file"] for row in rows}
    return path


def test_the_safetensors_package_reads_what_is_written(store):
    path = written(store, *(RawTensor(number, array) for number, array in GIVEN.items()))
    found = load(store.read(path))
    assert set(found) == {f"7/{number}" for number in GIVEN}
    for number, array in GIVEN.items():
        own = read_tensor(store, path, f"7/{number}")
        for read in (found[f"7/{number}"], own):
            assert read.shape == array.shape
            assert read.dtype == array.dtype.newbyteorder("<")
            assert np.array_equal(read, array)


def test_dtypes_that_numpy_lacks_are_kept_and_come_as_float32(store):
    torch = pytest.importorskip("torch")
    values = torch.tensor([1.5, -2.0, 0.0, 448.0])
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    tensors = []
    for number, name in enumerate(names):
        bits = values.to(getattr(torch, name)).view(torch.uint16 if name == "bfloat16" else torch.uint8)
        tensors.append(RawTensor(number, bits.numpy(), name))
    path = written(store, *tensors)
    with safe_open(store.root / path, "pt") as file:
        for number, name in enumerate(names):
            assert file.get_tensor(f"7/{number}").dtype == getattr(torch, name)
            expected = file.get_tensor(f"7/{number}").float().numpy()
            found = read_tensor(store, path, f"7/{number}")
            assert found.dtype == np.float32
            assert np.array_equal(found, expected, equal_nan=True)


def test_complex128_comes_back_whole(store):
    array = np.array([[1 + 2j, 3 - 4j, 1e300j]])
    path = written(store, RawTensor(1, array), RawTensor(2, np.array(1j)))
    assert np.array_equal(read_tensor(store, path, "7/1"), array)
    assert read_tensor(store, path, "7/2") == 1j
    assert load(store.read(path))["7/1"].shape == (1, 3, 2)


@pytest.mark.parametrize(
    "tensor",
    [
        RawTensor(1, np.zeros(2, object)), RawTensor(1, np.array(["a"])), RawTensor(1, np.zeros(2, "f4"), "bfloat16"),
        RawTensor(1, np.zeros(2, "u1"), "bfloat16"),
    ],
)  # fmt: skip
def test_a_dtype_that_cannot_be_stored_is_refused(store, tensor):
    assert not is_storable(tensor)
    with pytest.raises(InvalidValueError, match="cannot be stored"):
        write_tensors(store, 0, "worker_0", 0, [(0, tensor)])
    assert store.list() == []


def test_the_last_of_several_calls_of_a_step_counts(store):
    calls = [(0, RawTensor(1, np.array([float(call)]))) for call in range(3)]
    (row,) = write_tensors(store, 0, "worker_0", 0, calls)
    assert read_tensor(store, row["file"], row["key"]).tolist() == [2.0]


def test_nothing_is_copied_on_the_way_to_the_file(store):
    tensors = [(0, RawTensor(number, np.zeros(1 << 18, "f4"))) for number in range(8)]
    tracemalloc.start()
    try:
        write_tensors(store, 0, "worker_0", 0, tensors)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_more_tensors_than_one_system_call_takes(store):
    tensors = [(0, RawTensor(number, np.full(3, number, "u2"))) for number in range(3000)]
    rows = write_tensors(store, 0, "worker_0", 0, tensors)
    for row in rows[::500]:
        assert read_tensor(store, row["file"], row["key"]).tolist() == [row["tensor_id"]] * 3


def file_of(store, header, data=b"\0" * 64):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    store.write("f", len(text).to_bytes(8, "little") + text + data, replace=True)
    return "f"


F64 = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "header",
    [
        b"", b"[]", b"7", b"{", b"[" * 100_000, {"k": 1}, {"k": {}}, {"k": {**F64, "dtype": "X"}},
        {"k": {**F64, "dtype": []}}, {"k": {**F64, "shape": [3]}}, {"k": {**F64, "shape": [2.0]}},
        {"k": {**F64, "shape": [-2]}}, {"k": {**F64, "shape": 2}}, {"k": {**F64, "data_offsets": [0]}},
        {"k": {**F64, "data_offsets": [56, 72]}}, {"k": {**F64, "data_offsets": [-8, 8]}},
        {"k": {**F64, "data_offsets": [1 << 63, (1 << 63) + 16]}}, {"k": {**F64, "data_offsets": [True, 16]}},
        {"k": {**F64, "shape": [1, 2, 1]}, "__metadata__": {"k": "complex128"}}, {"k": F64, "__metadata__": []},
        {"k": F64, "__metadata__": "k"},
    ],
)  # fmt: skip
def test_a_file_that_lies_is_damaged_data(store, header):
    if header == {"k": F64, "__metadata__": []}:
        assert read_tensor(store, file_of(store, header), "k").shape == (2,)  # as good as none
        return
    with pytest.raises(DamagedDataError):
        read_tensor(store, file_of(store, header), "k")


def test_a_header_of_any_length_is_not_believed(store):
    store.write("f", (1 << 62).to_bytes(8, "little"))
    with pytest.raises(DamagedDataError, match="at most"):
        read_tensor(store, "f", "k")


@pytest.mark.parametrize("key", ["other", "__metadata__"])
def test_a_key_that_is_not_there_is_named(store, key):
    with pytest.raises(UnknownNameError, match="holds no tensor"):
        read_tensor(store, file_of(store, {"k": F64, "__metadata__": {"a": "b"}}), key)


def test_what_is_loaded_is_its_readers_own(store):
    path = written(store, RawTensor(1, np.arange(4.0)))
    before = store.read(path)
    load_tensor(store, path, "7/1").elements[:] = -1
    assert store.read(path) == before
    assert read_tensor(store, path, "7/1").tolist() == [0, 1, 2, 3]


def test_tensors_of_foreign_files_that_lie_askew_are_aligned(store):
    header = {"k": {"dtype": "F64", "shape": [2], "data_offsets": [3, 19]}}
    text = json.dumps(header).encode()
    store.write("f", len(text).to_bytes(8, "little") + text + b"\0" * 3 + np.array([1.5, -2.0]).tobytes())
    found = load_tensor(store, "f", "k").elements
    assert found.tolist() == [1.5, -2.0]
    assert found.flags.aligned


def test_only_one_tensor_of_a_large_file_is_read_where_it_is_not_mapped(store):
    class Remote(LocalStore):
        appends, read_bytes = False, 0

        def read(self, path, start=0, end=None):
            data = super().read(path, start, end)
            self.read_bytes += len(data)
            return data

    path = written(store, *(RawTensor(number, np.full(1 << 16, number, "f4")) for number in range(8)))
    remote = Remote(store.root)
    assert (load_tensor(remote, path, "7/5").elements == 5).all()
    assert remote.read_bytes <= (1 << 18) + (1 << 16)


def test_a_tensor_of_a_thousand_axes_is_refused(tmp_path):
    """NumPy would raise an error of its own."""
    store = LocalStore(tmp_path)
    header = json.dumps({"0/1": {"dtype": "F32", "shape": [1] * 1001, "data_offsets": [0, 4]}}).encode()
    store.write("a/b", len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(DamagedDataError, match=r"gives its tensor '0/1' 1001 axes; at most \d\d are read"):
        read_tensor(store, "a/b", "0/1")


def test_a_catalog_row_of_a_thousand_axes_is_left_out():
    frame = scan(
        encode_catalog(
            [
                TensorInfo(n, name, Role.WEIGHT, shape=shape)
                for n, name, shape in ((1, "a", (1,) * 1001), (2, "b", (2, 3)))
            ]
        )
    ).frames[0]
    left_out = []
    assert [row.name for row in decode_catalog(frame.payload, left_out)] == ["b"]
    assert len(left_out) == 1
