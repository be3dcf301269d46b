"""Sets of rules are data, combine without doubling, and can be adjusted rule by rule."""

from __future__ import annotations

import pytest

from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError
from watchglass.rules import RULE_SETS, default_rules, expand, find_rule, parse_rules, rule_names, rules_of_set
from watchglass.session import rule_specs


def names(text: str) -> list[str]:
    return [spec.name for spec in expand(parse_rules([text]))]


def test_the_sets_are_those_that_are_documented() -> None:
    assert list(RULE_SETS) == ["default", "all", "sagemaker", "llm", "vision", "tabular", "trees", "system"]
    assert rules_of_set("all") == tuple(rule_names())
    assert tuple(RuleSpec(name) for name in rules_of_set("default")) == default_rules()


def test_every_set_holds_built_in_rules_in_the_order_of_evaluation() -> None:
    order = rule_names()
    for name, each in RULE_SETS.items():
        assert sorted(each.rules, key=order.index) == list(each.rules), name
        assert len(set(each.rules)) == len(each.rules), name


def test_every_rule_is_in_a_set_that_is_about_something() -> None:
    about_something = {name for key, each in RULE_SETS.items() if key not in ("default", "all") for name in each.rules}
    assert about_something == set(rule_names())


def test_rules_of_the_original_know_its_thresholds() -> None:
    """What the original has beyond a threshold (a NaN, a tensor that is equal) has no override, all others have."""
    without = {name for name in rules_of_set("sagemaker") if "sagemaker" not in find_rule(name).calibrations}
    assert without <= {"ExplodingTensor", "SimilarAcrossRuns"}


def test_sets_combine_without_doubling() -> None:
    trees, llm = rules_of_set("trees"), rules_of_set("llm")
    assert set(trees) & set(llm)
    assert names("trees,llm") == [*trees, *(name for name in llm if name not in trees)]
    assert names("vision,DeadRelu") == list(rules_of_set("vision"))
    assert names("DeadRelu,vision")[0] == "DeadRelu"
    assert sorted(names("DeadRelu,vision")) == sorted(rules_of_set("vision"))


def test_a_rule_that_is_named_takes_the_place_of_the_one_of_a_set() -> None:
    for text in ("vision,DeadRelu:window=16", "DeadRelu:window=16,vision"):
        (dead_relu,) = [spec for spec in expand(parse_rules([text])) if spec.name == "DeadRelu"]
        assert dead_relu.parameters == {"window": "16"}


def test_a_file_stands_beside_a_set() -> None:
    assert names("trees,my.py:Mine") == [*rules_of_set("trees"), "my.py:Mine"]


def test_a_rule_that_is_named_twice_stays_for_the_engine_to_refuse() -> None:
    assert names("trees,Overfit,Overfit:patience=2").count("Overfit") == 2
    assert names("Overfit,trees,Overfit:patience=2").count("Overfit") == 2


def test_a_set_has_no_parameters() -> None:
    with pytest.raises(InvalidValueError, match=r'"llm" is a rule set .* but got window; .* llm,RULE:window=VALUE'):
        names("llm:window=3")


def test_a_script_names_sets_as_the_command_line_does() -> None:
    assert [spec.name for spec in rule_specs("trees")] == names("trees")
    assert [spec.name for spec in rule_specs(["trees", "DeadRelu:window=16"])] == names("trees,DeadRelu")
    assert rule_specs("DeadRelu:window=16")[0].parameters == {"window": "16"}
    assert rule_specs([]) == ()
    for wrong, message in (("llm:window=1", "is a rule set"), ([3], "but got 3")):
        with pytest.raises(InvalidValueError, match=message):
            rule_specs(wrong)
    with pytest.raises(InvalidValueError, match="calibration must be one of default, sagemaker but got 'sagemakr'"):
        rule_specs("default", "sagemakr")
