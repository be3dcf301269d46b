"""Collections: what each selects, and which settings cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from watchglass.config import BUILT_IN_COLLECTIONS, DEFAULT_COLLECTIONS, Collection, ModeSteps, SessionConfig
from watchglass.config.saving import Schedule
from watchglass.errors import InvalidValueError
from watchglass.records import Role

ISSUE = """all default weights biases gradients updates losses metrics outputs inputs layers labels predictions
input_image input_sequence learning_rate optimizer_variables relu_input relu_output tanh_input sigmoid_input attention
router logsumexp input_gradients"""


def test_the_built_in_collections_are_there() -> None:
    assert set(ISSUE.split()) <= set(BUILT_IN_COLLECTIONS)
    for name in BUILT_IN_COLLECTIONS:
        assert Collection(name).built_in is not None
    names = [collection.name for collection in DEFAULT_COLLECTIONS]
    assert names == ["weights", "biases", "gradients", "updates", "outputs", "relu_output", "router"]


@pytest.mark.parametrize(
    ("name", "role", "tags", "selected"),
    [
        ("gradients", Role.GRADIENT, (), True),
        ("gradients", Role.WEIGHT, (), False),
        ("layers", Role.INPUT, (), True),
        ("layers", Role.WEIGHT, (), False),
        ("all", Role.OPTIMIZER_STATE, (), True),
        ("default", Role.CUSTOM, (), True),
        ("default", Role.OUTPUT, (), False),
        ("relu_input", Role.INPUT, (), False),
        ("relu_input", Role.INPUT, ("relu_input",), True),
        ("relu_output", Role.INPUT, ("relu_output",), True),
        ("attention", Role.CUSTOM, ("model_input", "attention"), True),
        ("input_image", Role.INPUT, ("input_sequence",), False),
    ],
)
def test_built_in_ones_select_by_role_or_by_what_structure_says(
    name: str, role: Role, tags: tuple[str, ...], selected: bool
) -> None:
    assert Collection(name).selects("x", role, tags=tags) is selected


def test_others_select_by_name_module_type_and_role() -> None:
    regex = Collection("mine", include_regex=("^conv1", "bias$"))
    assert regex.selects("conv1.weight", Role.WEIGHT)
    assert regex.selects("fc.bias", Role.BIAS)
    assert not regex.selects("gradient/conv1.weight", Role.GRADIENT)
    names = Collection("mine", tensors=("fc.weight",), include_regex=("^x",))
    assert names.selects("fc.weight", Role.WEIGHT)
    assert names.selects("x1", Role.WEIGHT)
    assert not names.selects("fc.weights", Role.WEIGHT)
    kinds = Collection("mine", module_types=("ReLU", "GELU"), roles=("output",))  # type: ignore[arg-type]
    assert kinds.selects("a.output", Role.OUTPUT, "a", "GELU")
    assert not kinds.selects("a.input.0", Role.INPUT, "a", "GELU")
    assert not kinds.selects("a.output", Role.OUTPUT, "a", "Tanh")
    assert kinds.looks_at == {Role.OUTPUT}


@pytest.mark.parametrize(
    ("pattern", "module", "inside"),
    [
        ("encoder", "encoder", True),
        ("encoder", "encoder.layers.0", True),
        ("encoder", "encoder2", False),
        ("encoder", "model.encoder", False),
        ("layers.*.attention", "layers.3.attention.q", True),
        ("layers.*.attention", "layers.3.1.attention", False),
        ("layers.*.attention", "layers.3", False),
        ("layers.1?", "layers.12", True),
    ],
)
def test_a_module_stands_for_all_that_is_in_it(pattern: str, module: str, inside: bool) -> None:
    assert Collection("mine", modules=(pattern,)).selects("x", Role.OUTPUT, module) is inside


def test_selectors_narrow_a_built_in_collection() -> None:
    narrowed = Collection("gradients", include_regex=("conv",))
    assert narrowed.selects("gradient/conv.weight", Role.GRADIENT)
    assert not narrowed.selects("gradient/fc.weight", Role.GRADIENT)
    assert not narrowed.selects("conv.weight", Role.WEIGHT)
    assert not Collection("gradients", roles=(Role.WEIGHT,)).looks_at
    further = Collection("default", include_regex=("conv",))
    assert further.selects("conv.weight", Role.WEIGHT)


def test_what_a_script_saves_under_a_collection_belongs_to_it() -> None:
    assert Collection("mine", tensors=("x",)).selects("y", Role.CUSTOM, tags=("mine",))


def test_values_come_as_files_and_people_write_them() -> None:
    written: dict[str, Any] = {
        "save_interval": "5", "save_steps": "1, 2", "save_raw": "true", "save_shape": "False", "roles": "Weight,bias",
        "reductions": "min, l1_norm,abs_l2_norm,l2,median", "modes": {"eval": {"save_interval": "2"}},
        "include_regex": "x{1,3}",
    }  # fmt: skip
    collection = Collection("mine", **written)
    assert (collection.save_interval, collection.save_steps, collection.save_raw, collection.save_shape) == (
        5, (1, 2), True, False,
    )  # fmt: skip
    assert collection.roles == (Role.WEIGHT, Role.BIAS)
    assert collection.reductions == ("min", "l1", "abs_l2", "l2", "median")
    assert collection.modes == {"eval": ModeSteps(save_interval=2)}
    assert collection.include_regex == ("x{1,3}",)
    assert Collection(**collection.to_json()) == collection


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "x", "include_regex": ("(",)}, "collection x: include_regex '(' does not compile: missing )"),
        ({"name": "../x"}, "name must be a letter followed by"),
        ({"name": "gradeints"}, "collection 'gradeints' selects nothing (did you mean \"gradients\"?); set include_"),
        ({"name": "weights", "save_interval": 0}, "collection weights: save_interval must be >= 1 but got 0"),
        ({"name": "weights", "save_steps": [3, -1]}, "save_steps must be >= 0 but got -1"),
        ({"name": "weights", "save_steps": 3}, "save_steps must be a list of whole numbers or none but got 3"),
        ({"name": "weights", "start_step": 5, "end_step": 4}, "end_step must be after start_step (5) but got 4"),
        ({"name": "weights", "start_step": 5, "end_step": 0}, "end_step must be after start_step (5) but got 0; to"),
        (
            {"name": "weights", "start_step": 11, "end_step": 19, "save_interval": 10},
            "save_interval has no multiple from start_step (11) to before end_step (19) but got 10; name single steps",
        ),
        (
            {"name": "weights", "modes": {"eval": {"start_step": 2, "end_step": 2}}},
            "collection weights: modes.eval.end_step must be after start_step (2) but got 2",
        ),
        ({"name": "weights", "reductions": ("medain",)}, 'but got \'medain\' (did you mean "median"?)'),
        ({"name": "weights", "modes": {"evla": {}}}, 'modes must be one of train, eval, predict but got \'evla\' (did'),
        (
            {"name": "weights", "modes": {"eval": {"save_intervall": 3}}},
            'collection weights: modes.eval.save_intervall is unknown (did you mean "save_interval"?)',
        ),
        ({"name": "weights", "modes": {"eval": 3}}, "modes.eval must be a table of settings but got 3"),
        ({"name": "weights", "modes": {"eval": {"save_steps": "x"}}}, "modes.eval.save_steps must be a list of whole"),
        ({"name": "weights", "roles": ("wieght",)}, 'but got \'wieght\' (did you mean "weight"?)'),
        ({"name": "weights", "save_raw": "perhaps"}, "save_raw must be true or false or none but got 'perhaps'"),
    ],
)  # fmt: skip
def test_a_collection_that_cannot_work_is_refused_in_one_line(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Collection(**arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_steps_that_seem_to_contradict_may_mean_something() -> None:
    assert Collection("weights", end_step=0).end_step == 0
    assert Collection("weights", start_step=0, end_step=0).end_step == 0
    assert Collection("weights", start_step=5, end_step=5, save_steps=(7,)).save_steps == (7,)


def test_contradictions_between_a_collection_and_the_training_are_found() -> None:
    with pytest.raises(InvalidValueError) as caught:
        SessionConfig("run", collections=[Collection("gradients", end_step=50)], start_step=100)
    assert "collections.gradients keeps no step in mode train" in str(caught.value)
    assert "start_step is 100, end_step 50" in str(caught.value)
    SessionConfig("run", collections=[Collection("gradients", end_step=0)], start_step=100)
    SessionConfig("run", collections=[Collection("gradients", end_step=50, save_steps=[60])], start_step=100)


def test_a_schedule_that_is_out_of_reach_is_none() -> None:
    config = SessionConfig("run", collections=[Collection("gradients", end_step=0)], start_step=100)
    assert config.schedule(config.collections[0], "train") is None
    assert config.schedule(Collection("weights"), "train") == Schedule(None, 100)
    assert config.schedule(Collection("weights"), "eval") is None
