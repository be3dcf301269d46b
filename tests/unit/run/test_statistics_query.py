"""Statistics as one table, by Arrow, pandas, polars and SQL."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import polars
import pyarrow as pa
import pytest

from calls import profiled
from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import STATISTIC_FIELDS, Finding, Mode, Reduction, Severity
from watchglass.run import open_run
from watchglass.run.statistics_query import StatisticsQuery
from watchglass.stats import column, histograms_of, of_array
from watchglass.tables import Selection
from watchglass.testing import Row, Step, build_run

pytestmark = pytest.mark.own_process

NAMES = ("fc1.weight", "gradient/fc1.weight", "fc2.bias")


def array(step, name, worker=0):
    seed = [step, NAMES.index(name), worker]
    return np.random.default_rng(seed).normal(size=(4, 5) if "weight" in name else 3) * 10.0 ** (step % 3)


@pytest.fixture
def path(tmp_path):
    steps = []
    for n in range(12):
        mode = Mode.EVAL if n % 4 == 3 else Mode.TRAIN
        captured = {name: array(n, name) for name in NAMES} if n % 2 == 0 else {}
        exact = {"fc1.weight": {Reduction.MEDIAN: float(n)}} if n == 4 else {}
        steps.append(Step({"loss": 1.0 / (n + 1)}, captured, mode=mode, reductions=exact, facts={"note": {"n": n}}))
    found = Finding(
        "0123456789ab", "R", Severity.WARNING, 2, 2, 1, Mode.TRAIN, "worker_0", ("fc1.weight",), math.inf, 1.0, "m"
    )
    return build_run(tmp_path / "run", steps, modules={"fc1": "Linear", "fc2": "Linear"}, workers=2, journal=[found])


@pytest.fixture
def run(path):
    return open_run(path)


#: Global steps with statistics, and the TRAIN steps that they are: 3, 7 and 11 are evaluations.
CAPTURED = {0: 0, 2: 2, 4: 3, 6: 5, 8: 6, 10: 8}


def test_one_call_gives_a_data_frame(run):
    frame = run.statistics(role="gradient").to_pandas()
    assert frame["tensor"].unique().tolist() == ["gradient/fc1.weight"]
    assert frame["step"].tolist() == list(CAPTURED.values())
    assert frame["global_step"].tolist() == list(CAPTURED)
    rows = np.stack([of_array(array(n, "gradient/fc1.weight")) for n in CAPTURED])
    for name in (*STATISTIC_FIELDS, "mean", "std", "rms", "abs_mean", "abs_max", "zero_ratio", "nonfinite"):
        np.testing.assert_array_equal(frame[name], column(rows, name), err_msg=name)
    first = frame.iloc[0]
    assert (first.worker, first["mode"], first.role, first.module, first.module_type, first.layer_index) == (
        "worker_0", "TRAIN", "gradient", "fc1", "Linear", 0
    )  # fmt: skip


def test_arrow_pandas_and_polars_hold_the_same(run):
    table = run.statistics(worker="all", mode=Mode.GLOBAL)
    assert repr(table) == "Table('statistics': not read yet)"
    arrow, pandas, frame = table.to_arrow(), table.to_pandas(), table.to_polars()
    assert arrow.num_rows == len(table) == len(pandas) == len(frame) == 2 * 6 * 3
    assert arrow.column_names == table.columns == list(pandas.columns) == frame.columns
    assert pandas["l2"].tolist() == frame["l2"].to_list() == arrow["l2"].to_pylist()
    assert pandas["tensor"].tolist() == frame["tensor"].to_list() == arrow["tensor"].to_pylist()
    assert pa.table(table).num_rows == len(polars.DataFrame(table)) == len(table)  # by Arrow's own interface
    assert "36 rows" in repr(table)
    assert pandas.groupby("tensor")["l2"].mean().shape == (3,)


@pytest.mark.parametrize(
    ("wanted", "names", "steps"),
    [
        ({"names": ["fc2.bias"]}, {"fc2.bias"}, {0, 2, 3, 5, 6, 8}),
        ({"regex": r"^gradient/"}, {"gradient/fc1.weight"}, {0, 2, 3, 5, 6, 8}),
        ({"module": "fc1"}, {"fc1.weight", "gradient/fc1.weight"}, {0, 2, 3, 5, 6, 8}),
        ({"collection": "weights"}, {"fc1.weight"}, {0, 2, 3, 5, 6, 8}),
        ({"steps": range(2, 6), "role": "bias"}, {"fc2.bias"}, {2, 3, 5}),
        ({"steps": (2, 5), "role": "bias"}, {"fc2.bias"}, {2, 3}),
        ({"mode": Mode.EVAL}, set(), set()),
        ({"role": "output"}, set(), set()),
        ({"steps": (50, 60)}, set(), set()),
    ],
)
def test_what_is_selected_is_in_the_table_and_nothing_else(run, wanted, names, steps):
    table = run.statistics(**wanted)
    assert set(table.to_arrow()["tensor"].to_pylist()) == names
    assert set(table.to_arrow()["step"].to_pylist()) == steps
    assert table.columns == run.statistics().columns


def test_fields_are_the_reductions_asked_for(run):
    table = run.statistics(names=["fc1.weight"], fields=["l2", "std", "median"]).to_arrow()
    assert table.column_names[-4:] == ["sampled", "l2", "std", "median"]
    medians = table["median"].to_pylist()
    assert medians[2] == 4.0
    assert all(math.isnan(value) for value in medians[:2] + medians[3:])
    with pytest.raises(InvalidValueError, match="must be one of"):
        run.statistics(fields=["norm"])
    with pytest.raises(InvalidValueError, match="a role must be"):
        run.statistics("gradients")
    with pytest.raises(InvalidValueError, match="end exclusive"):
        run.statistics(steps=3)
    with pytest.raises(InvalidValueError, match="without gaps"):
        run.statistics(steps=range(0, 10, 2))
    with pytest.raises(UnknownNameError, match="worker_7"):
        run.statistics(worker="worker_7")


def test_histograms_are_columns_of_lists(run):
    table = run.statistics(names=["fc1.weight"], histograms=True).to_arrow()
    for row, n in zip(table.to_pylist(), CAPTURED, strict=True):
        known = histograms_of([array(n, "fc1.weight")])
        assert row["histogram_seen"] == 20
        assert row["histogram_counts"] == known.counts.tolist()
        assert all(low < high for low, high in zip(row["histogram_low"], row["histogram_high"], strict=True))


def test_every_size_of_pieces_gives_the_same_table(run):
    for more in ({"histograms": True}, {"merged": True}):
        whole = StatisticsQuery(Selection(), Mode.GLOBAL, None, "all", **more)
        assert replace(whole, rows_at_once=4).read(whole.team(run)).equals(whole.read(whole.team(run)))


def test_a_table_takes_little_more_memory_than_its_columns(tmp_path):
    rows = {f"layer{n}.weight": Row({"l2": 1.0}) for n in range(50)}
    path = build_run(tmp_path / "run", [Step({}, rows)] * 400)
    open_run(path).statistics(fields=["l2"]).to_arrow()  # imports what it needs
    run = open_run(path)
    tracemalloc.start()
    try:
        table = run.statistics(names=["layer7.weight"], fields=["l2"]).to_arrow()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.num_rows == 400
    assert peak < 400 * 50 * 11 * 8 / 2  # half of what all rows take


def test_sql_over_all_tables(run):
    frame = run.sql("select tensor, max(l2) as l2 from statistics group by tensor order by tensor").to_pandas()
    assert frame["tensor"].tolist() == sorted(NAMES)
    joined = run.sql(
        """
        select s.step, s.value, t.l2 from scalars s join statistics t using (worker, mode, step)
        where s.tensor = 'loss' and t.tensor = 'fc2.bias' and worker = 'worker_1' and mode = 'TRAIN' order by 1
        """
    ).to_arrow()
    assert joined["step"].to_pylist() == list(CAPTURED.values())
    assert joined["value"].to_pylist() == [1 / (n + 1) for n in CAPTURED]
    counts = {name: run.sql(f"select count(*) as n from {name}").to_arrow()["n"].to_pylist() for name in
              ("scalars", "steps", "tensors", "facts", "findings", "statistics")}  # fmt: skip
    assert counts == {"scalars": [24], "steps": [24], "tensors": [8], "facts": [24], "findings": [1],
                      "statistics": [36]}  # fmt: skip
    assert run.sql("select rule, value, tensors from findings").to_arrow().to_pylist() == [
        {"rule": "R", "value": math.inf, "tensors": ["fc1.weight"]}
    ]
    assert (
        run.sql("select data from facts where step = 5 and mode = 'TRAIN'").to_arrow()["data"][0].as_py() == '{"n": 6}'
    )
    assert run.statistics(role="bias").sql("select count(*) as n from statistics").to_arrow()["n"].to_pylist() == [6]


@pytest.mark.parametrize(
    "query", ["select * from statistics", "from statistics", "select s.* from statistics s", "summarize statistics"]
)
def test_columns_that_a_query_does_not_name_are_there_where_it_gives_all(run, query):
    found = run.sql(query).to_arrow()
    names = found["column_name"].to_pylist() if query.startswith("summarize") else found.column_names
    assert set(names) == set(run.table("statistics").columns)


def test_only_what_a_query_names_is_read(run):
    asked = []

    def note(frame, event, _):
        if event == "call" and frame.f_code is StatisticsQuery.read.__code__:
            asked.append(frame.f_locals["self"].fields)

    with profiled(note):
        run.sql("select count(*) from scalars")
        assert asked == []
        run.sql("select tensor, max(l2) from statistics group by all")
    assert asked == [("max", "l2")]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{secret}')", "select * from '{secret}'", "select * from read_text('{secret}')",
        "copy steps to '{target}'", "copy (select 1) to '{target}'", "attach '{target}' as other",
        "set enable_external_access = true", "set lock_configuration = false", "install httpfs", "load httpfs",
        "select * from glob('{folder}/*')", "export database '{folder}/out'", "select * from local_frame",
        "import database '{folder}'", "create persistent secret s (type s3)",
    ],
)  # fmt: skip
def test_a_query_reaches_neither_files_nor_objects_of_python(run, tmp_path, query):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    local_frame = pa.table({"secret": [1]})
    before = sorted(tmp_path.rglob("*"))
    text = query.format(secret=tmp_path / "secret.csv", target=tmp_path / "target", folder=tmp_path)
    with pytest.raises(InvalidValueError, match="refused the query"):
        run.sql(f"{text} -- steps")
    assert sorted(tmp_path.rglob("*")) == before
    assert local_frame.num_rows == 1


def test_a_query_for_what_is_not_there_says_what_is(run):
    with pytest.raises(InvalidValueError, match="tables are steps, tensors, scalars, statistics"):
        run.sql("select l2 from statistic")
    with pytest.raises(UnknownNameError, match='did you mean "scalars"'):
        run.table("scalar")


def test_a_run_without_anything_has_empty_tables(tmp_path):
    run = open_run(build_run(tmp_path / "run", []))
    for name in ("statistics", "scalars", "steps", "tensors", "facts", "findings"):
        assert len(run.table(name)) == 0
    assert len(run.statistics(merged=True, histograms=True)) == 0
    assert run.sql("select count(*) as n from statistics").to_arrow()["n"].to_pylist() == [0]
