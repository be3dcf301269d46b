"""Several models in one run: every step and every tensor says whose it is, and so do all tables of the run."""

from dataclasses import replace

from stores.parquet_files import read_parquet
from watchglass.records import Mode
from watchglass.run import leaders_of, open_run
from watchglass.store import LocalStore, compact
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.view import export_parquet

TURNS = [
    Step(
        {f"{prefix}loss": 1 / (n + 1), "temperature": 0.5},
        {f"gradient/{prefix.replace('/', '.')}fc.weight": [[1.0, 2.0]]},
        model=model,
    )
    for n in range(4)
    for model, prefix in enumerate(("", "model_2/"))
]


def test_rows_of_the_catalog_and_ends_of_steps_have_the_number_of_their_model(tmp_path):
    run = open_run(build_run(tmp_path / "run", TURNS))
    infos = run.worker().infos()
    assert {name: row.model for name, row in infos.items()} == {
        "loss": 0, "temperature": None, "gradient/fc.weight": 0, "model_2/loss": 1, "gradient/model_2.fc.weight": 1,
    }  # fmt: skip
    assert [end.model for end, _ in run.worker().course] == [0, 1] * 4
    assert infos["model_2/loss"].role == infos["loss"].role


def test_compacting_a_run_keeps_the_models(tmp_path):
    path = build_run(tmp_path / "run", TURNS)
    compact(LocalStore(path))
    worker = open_run(path).worker()
    assert [end.model for end, _ in worker.course] == [0, 1] * 4
    assert worker.infos()["gradient/model_2.fc.weight"].model == 1


def test_tables_and_exported_files_have_the_models(tmp_path):
    run = open_run(build_run(tmp_path / "run", TURNS))
    counted = run.sql("SELECT model, count(*) AS n FROM steps GROUP BY model ORDER BY model").to_pandas()
    assert counted["n"].tolist() == [4, 4]
    tensors = run.table("tensors").to_pandas().set_index("tensor")
    assert tensors.loc["gradient/model_2.fc.weight", "model"] == 1
    export_parquet(run, str(tmp_path / "out"))
    assert read_parquet(tmp_path / "out" / "steps.parquet")["model"].to_pylist() == [0, 1] * 4
    rows = read_parquet(tmp_path / "out" / "tensors.parquet")
    assert dict(zip(rows["tensor"].to_pylist(), rows["model"].to_pylist(), strict=True))["temperature"] is None


def test_evaluations_have_a_model_too(tmp_path):
    run = open_run(build_run(tmp_path / "run", [TURNS[0], Step({"model_2/loss": 1.0}, mode=Mode.EVAL, model=1)]))
    assert [(end.mode, end.model) for end, _ in run.worker().course] == [(Mode.TRAIN, 0), (Mode.EVAL, 1)]


def test_a_run_says_what_each_model_came_to(tmp_path):
    evaluations = [
        Step({f"{prefix}loss": value, f"{prefix}accuracy": 0.5}, mode=Mode.EVAL, model=model)
        for value in (0.3, 0.2, 0.4)
        for model, prefix in enumerate(("", "model_2/"))
    ]
    steps = [step for n in range(3) for step in (*TURNS, *evaluations[2 * n : 2 * n + 2])]
    facts = {"model": {"module_types": {"": "Teacher", "fc": "Linear", "model_2": "Student", "model_2.fc": "Linear"}}}
    first, second = open_run(build_run(tmp_path / "run", steps, facts=facts)).models
    assert (first.model, first.name, first.type, first.train_steps) == (0, "model", "Teacher", 12)
    assert (second.model, second.name, second.type, second.train_steps) == (1, "model_2", "Student", 12)
    assert (second.training_loss, second.validation_loss, second.best_validation_loss) == (0.25, 0.4, 0.2)
    assert second.accuracy == 0.5
    assert (second.findings, second.worst) == (0, None)
    assert second.accuracy_share == 1
    assert second.accuracy_name == "validation accuracy"


def test_an_accuracy_of_some_batches_says_of_how_many(tmp_path):
    evaluation = [Step({"loss": 0.3, **({"accuracy": 0.5} if i < 2 else {})}, mode=Mode.EVAL) for i in range(8)]
    training = [Step({"loss": 0.25}) for _ in range(4)]
    (model,) = open_run(build_run(tmp_path / "run", [*training, *evaluation])).models
    assert model.accuracy == 0.5
    assert model.accuracy_share == 0.25
    assert model.accuracy_name == "validation accuracy (25 % of batches)"


def test_workers_that_train_each_by_itself_have_models_each(tmp_path):
    with RunBuilder(tmp_path / "run", workers=2, alone=True) as builder:
        for number, step in enumerate(TURNS):
            builder.step(replace(step, workers=(0, 1) if number < 4 else (1,)))
        builder.leave()
    run = open_run(tmp_path / "run")
    assert leaders_of(run) == ("worker_0", "worker_1")
    assert [(each.worker, each.name, each.train_steps, each.training_loss) for each in run.models] == [
        ("worker_0", "model", 2, 0.5), ("worker_0", "model_2", 2, 0.5),
        ("worker_1", "model", 4, 0.25), ("worker_1", "model_2", 4, 0.25),
    ]  # fmt: skip


def test_workers_that_train_together_have_the_same_models(tmp_path):
    run = open_run(build_run(tmp_path / "run", TURNS, workers=2))
    assert leaders_of(run) == (None,)
    assert [(each.worker, each.name) for each in run.models] == [("", "model"), ("", "model_2")]


def test_both_models_of_a_joint_step_were_trained_by_it(tmp_path):
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0, "model_2/loss": 2.0}) for _ in range(5)]))
    assert [(each.name, each.train_steps, each.training_loss) for each in run.models] == [
        ("model", 5, 1.0), ("model_2", 5, 2.0),
    ]  # fmt: skip


def test_a_model_that_was_only_evaluated_is_one_too(tmp_path):
    steps = [TURNS[0], Step({"loss": 1.0}, mode=Mode.EVAL), Step({"model_2/loss": 0.9}, mode=Mode.EVAL, model=1)]
    first, average = open_run(build_run(tmp_path / "run", steps)).models
    assert (first.validation_loss, average.validation_loss) == (1.0, 0.9)
    assert (average.train_steps, average.training_loss) == (0, None)


def test_a_model_that_was_called_without_a_loss_came_to_nothing(tmp_path):
    """The target network of a Q-learner."""
    run = open_run(build_run(tmp_path / "run", [TURNS[0], Step({}, mode=Mode.EVAL, model=1)]))
    assert [each.name for each in run.models] == ["model"]


def test_a_run_of_one_model_has_one_and_an_empty_one_none(tmp_path):
    (only,) = open_run(build_run(tmp_path / "run", TURNS[::2])).models
    assert (only.name, only.train_steps) == ("model", 4)
    assert open_run(build_run(tmp_path / "empty")).models == ()


def test_the_page_of_a_run_of_a_hundred_models_stays_short(tmp_path):
    steps = [Step({f"model_{n + 1}/loss": 1.0}, model=n) for n in range(120)]
    page = open_run(build_run(tmp_path / "run", steps))._repr_html_()
    assert page.count("<tr>") <= 102
    assert "and 20 more rows" in page
