"""Whole tensors in their own dtype, over mapped files: as NumPy arrays and as torch tensors."""

import gc
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from watchglass.errors import InvalidValueError, MissingExtraError, StepNotRecordedError
from watchglass.records import RAW
from watchglass.run import open_run
from watchglass.store import LocalStore, RawTensor, load_tensor, write_tensors
from watchglass.testing import Step, build_run

FOREIGN = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
PLAIN = {
    "f4": np.arange(6, dtype="f4").reshape(2, 3), "f8": np.array(1.5), "f2": np.zeros((0, 3), "f2"),
    "i8": np.arange(4), "b1": np.array([True, False]), "c8": np.array([1 + 2j], "c8"), "c16": np.array([[1 - 2j, 3j]]),
    "u1": np.arange(3, dtype="u1"),
}  # fmt: skip


def bits(name):
    values = torch.tensor([[1.5, -2.0, 0.0], [0.25, 240.0, -0.5]]).to(getattr(torch, name))
    return values, values.view(torch.uint16 if name == "bfloat16" else torch.uint8).numpy()


@pytest.fixture
def path(tmp_path):
    raw = {**PLAIN, **{name: RawTensor(0, bits(name)[1], name) for name in FOREIGN}}
    return build_run(tmp_path / "run", [Step({"loss": 1.0}, raw=raw)])


@pytest.mark.parametrize("name", PLAIN)
def test_plain_dtypes_come_as_they_are(path, name):
    tensor = open_run(path).tensor(name)
    value, as_torch = tensor.value(0), tensor.torch(0)
    assert (value.dtype, value.shape) == (PLAIN[name].dtype, PLAIN[name].shape)
    assert np.array_equal(value, PLAIN[name])
    assert torch.equal(as_torch, torch.from_numpy(PLAIN[name]))
    assert as_torch.shape == PLAIN[name].shape


@pytest.mark.parametrize("name", FOREIGN)
def test_dtypes_that_numpy_lacks_come_in_their_own(path, name):
    tensor, (known, _) = open_run(path).tensor(name), bits(name)
    value = tensor.value(0)
    assert value.dtype == np.dtype(getattr(ml_dtypes, name))
    assert value.astype("f4").tolist() == known.float().tolist()
    as_torch = tensor.torch(0)
    assert as_torch.dtype == known.dtype
    assert torch.equal(as_torch.float(), known.float())
    assert tensor.value(0, as_float32=True).dtype == np.float32
    assert tensor.values(as_float32=True)[0].tolist() == known.float().tolist()
    assert tensor.reduction(0, "max") == known.float().max()
    assert open_run(path).step(0).value(name).dtype == value.dtype


def test_arrays_and_tensors_share_the_mapped_file_and_outlive_the_run(path):
    """The file is mapped, not read: nothing of its size is allocated, and numpy and torch lie over that memory."""
    store = LocalStore(Path(path).parent / "big")
    (row,) = write_tensors(store, 0, "worker_0", 0, [(0, RawTensor(1, np.arange(1 << 20, dtype="f4")))])
    stored = load_tensor(store, row["file"], row["key"])
    owner = stored.elements
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert type(getattr(owner.base, "obj", owner.base)).__name__ == "mmap"
    run = open_run(path)
    value, tensor = run.tensor("f4").value(0), run.tensor("f4").torch(0)
    del run
    gc.collect()
    assert value.tolist() == tensor.tolist() == PLAIN["f4"].tolist()


def test_what_is_changed_changes_nothing_in_the_run(path):
    tensor = open_run(path).tensor("f4")
    tensor.value(0)[:] = 7
    tensor.torch(0).fill_(8)
    assert tensor.value(0).tolist() == open_run(path).tensor("f4").torch(0).tolist() == PLAIN["f4"].tolist()


def test_a_store_that_is_not_mapped_gives_the_same(path):
    class Remote(LocalStore):
        appends = False

        def map(self, path):
            raise AssertionError("a whole object was read")

    here, remote = open_run(path), Remote(path)
    place = {row.tensor.tensor_id: row[1:] for row in here.worker().tables.rows(RAW, 0)}
    for info in here.worker().infos().values():
        if info.tensor_id in place:
            own, other = (load_tensor(store, *place[info.tensor_id]) for store in (here.store, remote))
            assert own.elements.tobytes() == other.elements.tobytes()
            assert (own.elements.shape, own.dtype) == (other.elements.shape, other.dtype)
            assert other.elements.flags.writeable


@pytest.mark.parametrize(
    ("package", "use", "message"),
    [
        ("ml_dtypes", lambda run: run.tensor("bfloat16").value(0), r"watchglass\[analysis\].*as_float32=True"),
        ("torch", lambda run: run.tensor("f4").torch(0), "pip install torch"),
        ("pandas", lambda run: run.table("scalars").to_pandas(), r"pandas.*watchglass\[analysis\]"),
        ("polars", lambda run: run.table("scalars").to_polars(), r"polars.*watchglass\[analysis\]"),
        ("duckdb", lambda run: run.sql("select 1"), "duckdb"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(path, monkeypatch, package, use, message):
    monkeypatch.setitem(sys.modules, package, None)
    run = open_run(path)
    with pytest.raises(MissingExtraError, match=message):
        use(run)
    assert run.tensor("bfloat16").value(0, as_float32=True).dtype == np.float32


def test_a_dtype_that_this_torch_lacks_is_named(path, monkeypatch):
    monkeypatch.delattr(torch, "float8_e5m2")
    with pytest.raises(InvalidValueError, match="no dtype float8_e5m2"):
        open_run(path).tensor("float8_e5m2").torch(0)


def test_scalars_are_tensors_too(path):
    assert open_run(path).tensor("loss").torch(0).tolist() == 1.0


def test_a_tensor_that_was_removed_says_so(path):
    run = open_run(path)
    for file in Path(path).glob("attempts/*/tensors/*"):
        file.unlink()
    for ask in (run.tensor("f4").value, run.tensor("f4").torch, lambda step: run.step(step).value("f4")):
        with pytest.raises(StepNotRecordedError, match="was removed from the run"):
            ask(0)
    assert run.tensor("f4").values() == {}
