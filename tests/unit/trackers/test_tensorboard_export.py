"""Event files have what the run has, as TensorBoard's own reader sees it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

from dashboards import HOSTILE, finding, steps
from watchglass import diagnose
from watchglass.errors import CompactedError, InvalidValueError, MissingExtraError, RunExistsError, StoreError
from watchglass.records import Mode, ModuleKind, Reduction, Role, RuleStatus, Status, TensorInfo
from watchglass.run import Run, open_run
from watchglass.testing import Batch, RunBuilder, Step, build_run
from watchglass.trackers import ExportedRun, TensorBoardExport, tensorboard_export

MODULES = {"net.fc1": ModuleKind.LINEAR, "net.act": ModuleKind.RECTIFIER, "net.fc2": ModuleKind.LINEAR}


def export(run: Run | Path, folder: Path, *, ended: bool = True, **options: Any) -> ExportedRun:
    opened = open_run(run) if isinstance(run, Path) else run
    with closing(TensorBoardExport(opened, str(folder), diagnose.verdict, **options)) as made:
        made.write_new(ended=ended)
        return made.written


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(folder: Path, tag: str) -> dict[int, float]:
    found = read(folder).Scalars(tag)
    assert len({each.step for each in found}) == len(found)
    return {each.step: each.value for each in found}


def events(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("events.*")):
        yield from map(event_pb2.Event.FromString, RawEventFileLoader(str(path)).Load())


def texts(folder: Path, tag: str) -> list[str]:
    return [each.tensor_proto.string_val[0].decode() for each in read(folder).Tensors(tag)]


@pytest.fixture
def weights() -> list[np.ndarray]:
    """Normal numbers and some zeros, of a different spread at each step."""
    random = np.random.default_rng(0)
    return [np.append(random.normal(0, 0.1 * (n + 1), 400), np.zeros(100)).astype(np.float32) for n in range(5)]


@pytest.fixture
def stored(run_path: Path, weights: list[np.ndarray]) -> Path:
    made = [
        Step(
            {"loss": 2.0 / (n + 1), "learning_rate": 0.1},
            statistics={"net.fc1.weight": each, "gradient/net.fc1.weight": each / 10},
            reductions={"net.fc1.weight": {Reduction.MEDIAN: 0.5 + n}},
        )
        for n, each in enumerate(weights)
    ]
    return Path(build_run(run_path, made, modules=MODULES))


def test_every_scalar_and_reduction_is_that_of_the_run(stored: Path, tmp_path: Path) -> None:
    written = export(stored, tmp_path / "tb")
    train, run = tmp_path / "tb" / "run" / "train", open_run(stored)
    assert Path(written.folder) == tmp_path / "tb" / "run"
    assert scalars(train, "loss") == pytest.approx(dict(zip(*run.scalars("loss"), strict=True)))
    for tag, tensor in (("weight/net.fc1.weight", "net.fc1.weight"), ("gradient/net.fc1.weight",) * 2):
        for name in ("mean", "std", "min", "max", "l2", "zero_ratio"):
            expected = dict(zip(*run.tensor(tensor).reductions(name), strict=True))
            assert scalars(train, f"{tag}/{name}") == pytest.approx(expected)
    assert scalars(train, "weight/net.fc1.weight/median") == {n: 0.5 + n for n in range(5)}
    assert written.steps == 5
    assert written.scalars == 5 * (2 + 2 * 6 + 1)


def test_all_of_a_step_is_one_event_at_its_time(stored: Path, tmp_path: Path) -> None:
    export(stored, tmp_path / "tb")
    found = [each for each in events(tmp_path / "tb" / "run" / "train") if each.HasField("summary")]
    assert [each.step for each in found] == list(range(5))
    assert np.diff([each.wall_time for each in found]) == pytest.approx(0.1, abs=1e-4)


def test_values_that_are_not_finite_arrive(run_path: Path, tmp_path: Path) -> None:
    broken = np.array([np.nan, np.inf, 1.0], np.float32)
    build_run(run_path, [Step({"loss": float("nan")}, statistics={"net.fc1.weight": broken})], modules=MODULES)
    export(run_path, tmp_path / "tb")
    train = tmp_path / "tb" / "run" / "train"
    assert np.isnan(scalars(train, "loss")[0])
    assert scalars(train, "weight/net.fc1.weight/nonfinite") == {0: 2.0}
    assert scalars(train, "weight/net.fc1.weight/max") == {0: 1.0}


def test_histograms_hold_every_element_between_the_exact_extremes(
    stored: Path, weights: list[np.ndarray], tmp_path: Path
) -> None:
    assert export(stored, tmp_path / "tb").histograms == 10
    found = read(tmp_path / "tb" / "run" / "train").Tensors("weight/net.fc1.weight")
    for each, values in zip(found, weights, strict=True):
        left, right, counts = tensor_util.make_ndarray(each.tensor_proto).T
        assert counts.sum() == pytest.approx(len(values))
        assert (left[0], right[-1]) == (values.min(), values.max())
        assert counts[(left == 0) & (right == 0)].tolist() == [100]
        # Without gaps: TensorBoard takes the right edge of a bucket as the left one of the next.
        assert (left[1:] == right[:-1]).all()
        middle = values[values > 0]
        shares = np.cumsum(counts) / counts.sum()
        assert np.interp(0.9, shares, right) == pytest.approx(np.quantile(values, 0.9), rel=0.25)
        assert len(middle)


def test_histograms_can_be_left_out(stored: Path, tmp_path: Path) -> None:
    assert export(stored, tmp_path / "tb", histograms=False).histograms == 0
    assert read(tmp_path / "tb" / "run" / "train").Tags()["tensors"] == []


def test_of_a_long_run_some_histograms_are_written(run_path: Path, tmp_path: Path) -> None:
    made = [Step({}, statistics={"net.fc1.weight": np.ones(2, np.float32) * n}) for n in range(300)]
    build_run(run_path, made, modules=MODULES)
    assert export(run_path, tmp_path / "tb").histograms == 64 + 32 + 32 + 6  # 300 lies in the third doubling
    found = read(tmp_path / "tb" / "run" / "train")
    assert len(found.Scalars("weight/net.fc1.weight/mean")) == 300


def test_the_same_export_again_writes_only_what_is_new(run_path: Path, tmp_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        builder.step({"scalars": {"loss": 1.0}})
        builder.step({"scalars": {"loss": 2.0}})
        assert export(run_path, tmp_path / "tb", ended=False).steps == 2
        assert export(run_path, tmp_path / "tb", ended=False).steps == 0
        builder.step({"scalars": {"loss": 3.0}})
        assert export(run_path, tmp_path / "tb", ended=False).steps == 1
    assert scalars(tmp_path / "tb" / "run" / "train", "loss") == {0: 1.0, 1: 2.0, 2: 3.0}


@pytest.mark.parametrize("followed", [True, False])
def test_steps_that_a_resumed_attempt_repeats_replace_the_earlier_ones(
    run_path: Path, tmp_path: Path, followed: bool
) -> None:
    out = tmp_path / "tb"
    with RunBuilder(run_path, alive=False) as first:
        for n in range(10):
            first.step({"scalars": {"loss": float(n)}})
            if n % 5 == 4:
                first.step(Step({"loss": 50.0 + n}, mode=Mode.EVAL))
    run = open_run(run_path)
    with closing(TensorBoardExport(run, str(out), diagnose.verdict)) as made:
        if followed:
            made.write_new()
            assert scalars(out / "run" / "train", "loss") == {n: float(n) for n in range(10)}
        with RunBuilder(run_path, resumed={"start_step": 6, "source": "optimizer"}) as second:
            for n in range(6, 12):
                second.step({"scalars": {"loss": 100.0 + n}})
                if n == 10:
                    second.step(Step({"loss": 950.0}, mode=Mode.EVAL))
            second.leave()
        run.refresh()
        made.write_new(ended=True)
    expected = {n: float(n) if n < 6 else 100.0 + n for n in range(12)}
    assert scalars(out / "run" / "train", "loss") == expected
    assert scalars(out / "run" / "eval", "loss") == {4: 54.0, 10: 950.0}
    assert "attempt 1 continues at step 6" in texts(out / "run" / "watchglass", "watchglass/settings")[-1]
    starts = [each.step for each in events(out / "run" / "train") if each.HasField("session_log")]
    assert starts == [0, 6]


def test_a_run_that_is_compacted_meanwhile_is_read_again(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_numbers, failed = tensorboard_export.statistics_of, list[int]()

    def compacted_once(*args: Any, **given: Any) -> Any:
        if not failed:
            failed.append(1)
            raise CompactedError("segments were compacted")
        return read_numbers(*args, **given)

    monkeypatch.setattr(tensorboard_export, "statistics_of", compacted_once)
    export(stored, tmp_path / "tb")
    assert len(scalars(tmp_path / "tb" / "run" / "train", "weight/net.fc1.weight/max")) == 5


def test_an_evaluation_is_one_point_at_its_training_step_once_it_is_over(run_path: Path, tmp_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        builder.step({"scalars": {"loss": 3.0}})
        for loss in (1.0, 2.0):
            builder.step(Step({"loss": loss}, mode=Mode.EVAL))
        export(run_path, tmp_path / "tb", ended=False)
        assert not (tmp_path / "tb" / "run" / "eval").exists()
        builder.step(Step({"loss": 6.0}, mode=Mode.EVAL))
        builder.step({"scalars": {"loss": 2.0}})
        export(run_path, tmp_path / "tb", ended=False)
        builder.step(Step({"loss": 5.0}, mode=Mode.EVAL))
        builder.leave()
    export(run_path, tmp_path / "tb")
    assert scalars(tmp_path / "tb" / "run" / "eval", "loss") == {0: 3.0, 1: 5.0}


def test_each_worker_has_a_folder(run_path: Path, tmp_path: Path) -> None:
    build_run(run_path, [Step({"loss": 1.0}), Step({"loss": 5.0}, workers=(1,))], workers=2)
    export(run_path, tmp_path / "tb")
    assert scalars(tmp_path / "tb" / "run" / "worker_1" / "train", "loss") == {0: 1.0, 1: 5.0}
    assert scalars(tmp_path / "tb" / "run" / "worker_0" / "train", "loss") == {0: 1.0}


def test_findings_and_the_verdict_are_texts_without_any_effect(run_path: Path, tmp_path: Path) -> None:
    journal = [finding("Mine", f"a | b {HOSTILE} [x](javascript:alert(1))"), RuleStatus("Mine", Status.ISSUES_FOUND)]
    build_run(run_path, steps(), modules={HOSTILE: "Linear"}, journal=journal)
    export(run_path, tmp_path / "tb")
    about = tmp_path / "tb" / "run" / "watchglass"
    (listed,) = texts(about, "findings/Mine")
    assert listed.startswith(
        "- **error** at step 12: a \\| b &lt;img src=x onerror=alert\\(1\\)&gt; \\[x\\]\\(javascript"
    )
    assert listed.endswith("(measured 7, limit 1)")
    (verdict,) = texts(about, "watchglass/verdict")
    assert verdict.startswith("### issues found: 1 error")
    assert "<" not in verdict + listed


def test_the_graph_has_the_modules_in_the_order_of_their_calls(run_path: Path, tmp_path: Path) -> None:
    outputs = {f"{name}.output": np.ones((2, 3), np.float32) for name in MODULES}
    types = {"": "Model", "net": "Sequential", "net.fc1": "Linear", "net.act": "ReLU", "net.fc2": "Linear", "head": "X"}
    build_run(run_path, [Step({}, statistics=outputs)], modules=MODULES, facts={"model": {"module_types": types}})
    export(run_path, tmp_path / "tb")
    graph = read(tmp_path / "tb" / "run" / "watchglass").Graph()
    assert [(each.name, each.op, list(each.input)) for each in graph.node] == [
        ("net/fc1", "Linear", []),
        ("net/act", "ReLU", ["net/fc1"]),
        ("net/fc2", "Linear", ["net/act"]),
        ("head", "X", []),
    ]
    (shape,) = graph.node[0].attr["_output_shapes"].list.shape
    assert [each.size for each in shape.dim] == [2, 3]


def test_modules_whose_names_differ_in_a_sign_only_are_two_nodes(run_path: Path, tmp_path: Path) -> None:
    types = dict.fromkeys(("a+b.fc", "a b.fc", "a+b.fc!", "a_b.fc_", "_x", "mx", "m_x"), "Linear")
    build_run(run_path, [Step({"loss": 1.0})], facts={"model": {"module_types": types}})
    export(run_path, tmp_path / "tb")
    names = [each.name for each in read(tmp_path / "tb" / "run" / "watchglass").Graph().node]
    assert names == ["a_b/fc", "a_b_2/fc", "a_b/fc_", "a_b_3/fc_", "m_x", "mx", "m_x_2"]


def test_metrics_of_the_machine_are_scalars_by_wall_time(run_path: Path, tmp_path: Path) -> None:
    metrics = {
        "cpu.utilization": [10.0, 20.0, float("nan"), 40.0], "cpu.core.utilization": [[1.0] * 20] * 4,
        "gpu.utilization": [[5.0, 6.0]] * 4, "process.memory": [[1e6]] * 4,
    }  # fmt: skip
    path = Path(build_run(run_path, [Batch(metrics=metrics, seconds=8), Step({"loss": 1.0})]))
    run = open_run(path)
    samples = run.samples("cpu.utilization")
    begun_ns = int(samples.time[0].astype(np.int64)) - 5 * 10**9
    run.__dict__["manifest"] = replace(run.manifest, created_ns=begun_ns)
    written = export(run, tmp_path / "tb")
    found = read(tmp_path / "tb" / "run" / "system")
    assert set(found.Tags()["scalars"]) == {
        "system/cpu.utilization", "system/cpu.core.utilization", "system/gpu.utilization/0", "system/gpu.utilization/1",
    }  # fmt: skip
    shown = found.Scalars("system/cpu.utilization")
    assert [each.value for each in shown] == [10.0, 20.0, 40.0]
    known = np.isfinite(samples.values)
    expected = (samples.time[known].astype(np.int64) / 1e9).tolist()
    assert [each.wall_time for each in shown] == pytest.approx(expected, abs=1e-3)
    assert [each.step for each in shown] == [5, 7, 11]
    assert written.scalars == 1 + 3 + 3 * 4
    assert export(run, tmp_path / "tb").scalars == 0


def test_of_a_long_run_some_samples_are_written(run_path: Path, tmp_path: Path) -> None:
    build_run(run_path, [Batch(metrics={"cpu.utilization": [1.0] * 5000}, seconds=2500), Step({"loss": 1.0})])
    export(run_path, tmp_path / "tb")
    assert 1024 < len(read(tmp_path / "tb" / "run" / "system").Scalars("system/cpu.utilization")) < 1024 + 3 * 512


def test_a_run_that_goes_on_has_no_verdict_before_there_is_one(stored: Path, tmp_path: Path) -> None:
    export(stored, tmp_path / "tb", ended=False)
    assert "watchglass/verdict" not in read(tmp_path / "tb" / "run" / "watchglass").Tags()["tensors"]
    export(stored, tmp_path / "tb")
    assert len(texts(tmp_path / "tb" / "run" / "watchglass", "watchglass/verdict")) == 1


def test_the_graph_has_no_edge_from_a_model_to_another(run_path: Path, tmp_path: Path) -> None:
    named = {"net.fc1": 0, "critic.fc1": 1, "net.fc2": 0}
    rows = [TensorInfo(0, f"{path}.output", Role.OUTPUT, module=path, model=model) for path, model in named.items()]
    values = {each.name: np.ones((2, 3), np.float32) for each in rows}
    types = {"model": {"module_types": dict.fromkeys(named, "Linear")}}
    build_run(run_path, [Step({}, statistics=values)], tensors=rows, facts=types)
    export(run_path, tmp_path / "tb")
    graph = read(tmp_path / "tb" / "run" / "watchglass").Graph()
    assert {each.name: list(each.input) for each in graph.node} == {
        "net/fc1": [], "critic/fc1": [], "net/fc2": ["net/fc1"],
    }  # fmt: skip


def test_a_folder_with_other_files_is_refused(stored: Path, run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "run").mkdir(parents=True)
    (tmp_path / "a" / "run" / "notes").write_text("mine")
    with pytest.raises(RunExistsError, match=r"has other files; choose another folder, or remove it first"):
        export(stored, tmp_path / "a")
    other = build_run(tmp_path / "b" / "run", [Step({"loss": 1.0})])
    export(Path(other), tmp_path / "c")
    with pytest.raises(RunExistsError, match="has another run of this name"):
        export(stored, tmp_path / "c")
    assert (tmp_path / "a" / "run" / "notes").read_text() == "mine"


def test_what_does_not_fit_on_the_disk_is_written_when_it_does(stored: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for most_bytes in (0, 4096):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
            with pytest.raises(StoreError, match=r"cannot write .*: File too large; c"):
                export(stored, tmp_path / "tb")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    export(stored, tmp_path / "tb")
    expected = dict(zip(*open_run(stored).scalars("loss"), strict=True))
    assert scalars(tmp_path / "tb/run/train", "loss") == pytest.approx(expected)


def test_a_folder_that_another_process_writes_is_refused(stored: Path, tmp_path: Path) -> None:
    with (
        closing(TensorBoardExport(open_run(stored), str(tmp_path / "tb"), diagnose.verdict)),
        pytest.raises(RunExistsError, match="is written by another process now"),
    ):
        export(stored, tmp_path / "tb")
    assert export(stored, tmp_path / "tb").steps == 5


def test_an_object_store_is_refused(stored: Path) -> None:
    with pytest.raises(InvalidValueError, match="TensorBoard needs a folder but got 's3://bucket/tb'"):
        TensorBoardExport(open_run(stored), "s3://bucket/tb", diagnose.verdict)


def test_a_missing_tensorboard_is_named(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("watchglass.trackers", "tensorboard."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    from watchglass.trackers import TensorBoardExport as Fresh

    with pytest.raises(MissingExtraError, match=r"pip install 'watchglass\[tensorboard\]'"):
        Fresh(open_run(stored), str(tmp_path / "tb"), diagnose.verdict)
    assert not os.path.exists(tmp_path / "tb")
