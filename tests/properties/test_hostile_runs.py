"""Whatever is done to the bytes of a run, opening it gives a run or one of our errors: no crash, no foreign error."""

import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from watchglass.errors import WatchglassError
from watchglass.records import Mode, Reduction, RuleStatus, Status
from watchglass.run import open_run
from watchglass.store import LocalStore
from watchglass.store.encoding.frames import HEADER_BYTES
from watchglass.testing import Step, build_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    steps = [
        Step({"loss": 1.0}, {"fc1.weight": np.ones((2, 3))}, {"fc1.output": [1, 0]}, {"model": {"x": [1]}},
             {"fc1.weight": np.ones((2, 3), "f4")}, mode, reductions={"fc1.weight": {Reduction.MEDIAN: 1.0}})
        for mode in (Mode.TRAIN, Mode.EVAL)
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("sound") / "run"
    return Path(build_run(path, steps, journal=[RuleStatus("R", Status.STOPPED)]))


def use_everything(path):
    run = open_run(path)
    repr(run)
    run.problems, repr(run.journal), run.stretches(), run.facts(), run.worker().seconds, run._repr_html_()
    for table in ("statistics", "scalars", "steps", "tensors", "facts", "findings"):
        run.table(table)._repr_html_()
    run.statistics(merged=True, histograms=True, mode=Mode.GLOBAL).to_arrow()
    for name in run.tensor_names():
        tensor = run.tensor(name)
        for mode in Mode:
            for use in (
                tensor.values, tensor.steps, tensor.histograms, lambda mode, tensor=tensor: tensor.quantiles(0.5, mode),
                *(lambda mode, n=n, tensor=tensor: tensor.reductions(n, mode) for n in ("std", "median", "abs_std")),
            ):  # fmt: skip
                try:
                    use(mode)
                except WatchglassError:
                    pass
        repr(tensor)


def tampered(sound, change):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shutil.copytree(sound, run)
        change(run)
        message = ""
        try:
            use_everything(run)
        except WatchglassError as error:
            message = str(error)
        assert "\n" not in message


def changes(content):
    """Some positions of ``content``, each with a byte to put there."""
    return st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), min_size=1)


def files(run):
    return [run / entry.path for entry in LocalStore(run).list()]


@given(data=st.data())
def test_changed_bytes_anywhere(sound, data):
    def change(run):
        path = data.draw(st.sampled_from(files(run)), label="file")
        content = bytearray(path.read_bytes())
        for at, value in data.draw(
            st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), min_size=1)
        ):
            content[at] = value
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])

    tampered(sound, change)


@given(data=st.data())
def test_changed_payloads_with_right_checksums(sound, data):
    """Checksums protect from accidents, not from people: decoders must hold by themselves."""

    def change(run):
        path = next(path for path in files(run) if "segments" in path.parts)
        content = path.read_bytes()
        frames = []
        while content:
            length = int.from_bytes(content[8:12], "little")
            frames.append((content[4:8], content[HEADER_BYTES : HEADER_BYTES + length]))
            content = content[HEADER_BYTES + length :]
        chosen = data.draw(st.integers(0, len(frames) - 1), label="frame")
        head, payload = frames[chosen]
        payload = bytearray(payload)
        for at, value in data.draw(
            st.lists(st.tuples(st.integers(0, len(payload) - 1), st.integers(0, 255)), min_size=1)
        ):
            payload[at] = value
        frames[chosen] = (head, bytes(payload))
        path.write_bytes(b"".join(encode(head, payload) for head, payload in frames))

    def encode(head, payload):
        checked = head + len(payload).to_bytes(4, "little")
        crc = zlib.crc32(payload, zlib.crc32(checked))
        return b"WGF1" + checked + crc.to_bytes(4, "little") + payload

    tampered(sound, change)


@given(manifest=st.one_of(st.binary(max_size=50), st.text(max_size=50).map(str.encode)))
def test_any_manifest(sound, manifest):
    tampered(sound, lambda run: (run / "run.json").write_bytes(manifest))
