"""Sets of rules by name: what each is for. A rule says in its line of ``built_in.py`` which of them hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError
from watchglass.rules.built_in import rule_names


@dataclass(frozen=True)
class RuleSet:
    """Built-in rules that are named together.

    Attributes:
        help: What they are for, in one sentence.
        rules: Names of built-in rules, in the order in which they are evaluated.
    """

    help: str
    rules: tuple[str, ...]


_HELP = {
    "default": "what is evaluated where no rule is named: fits every run, costs little",
    "all": "every built-in rule",
    "sagemaker": "built-in rules of SageMaker Debugger; its thresholds come with --calibration sagemaker",
    "llm": "language models and other transformers",
    "vision": "networks of convolutions and ReLUs",
    "trees": "boosted trees",
    "system": "how the training uses its machine",
}

#: Sets by name.
RULE_SETS: Mapping[str, RuleSet] = MappingProxyType(
    {name: RuleSet(text, tuple(rule_names(name))) for name, text in _HELP.items()}
)


def rules_of_set(name: str) -> tuple[str, ...]:
    """Names of the rules of a set, in the order in which they are evaluated.

    Args:
        name: A key of :data:`RULE_SETS`.

    Raises:
        InvalidValueError: It holds none in this release.
    """
    found = RULE_SETS[name].rules
    if not found:
        full = ", ".join(known for known, each in RULE_SETS.items() if each.rules)
        raise InvalidValueError(
            f'the rule set "{name}" ({RULE_SETS[name].help}) holds no rule in this release; leave it out, sets with '
            f"rules are {full}"
        )
    return found


def expand(specs: Iterable[RuleSpec]) -> tuple[RuleSpec, ...]:
    """Rules, of which a name may be that of a set, without sets.

    What several sets hold comes once, where it is named first. A rule that is named itself takes the place of the same
    rule of a set, so that a set can be adjusted: ``"vision,DeadRelu:window=16"``. One that is named twice stays there
    twice, for the engine to refuse.

    Raises:
        InvalidValueError: A set with parameters, or one that holds no rule in this release.
    """
    specs = tuple(specs)
    named = {spec.name: spec for spec in specs if spec.name not in RULE_SETS}
    result: list[RuleSpec] = []
    from_sets: set[str] = set()
    for spec in specs:
        if spec.name not in RULE_SETS:
            if spec.name not in from_sets or spec is not named[spec.name]:
                result.append(spec)
            continue
        if spec.parameters:
            raise InvalidValueError(
                f'"{spec.name}" is a set of rules, which has no parameters, but got {", ".join(spec.parameters)}; '
                f"name the rule beside it: {spec.name},RULE:{next(iter(spec.parameters))}=VALUE"
            )
        before = {each.name for each in result}
        taken = [name for name in rules_of_set(spec.name) if name not in before]
        result += [named.get(name, RuleSpec(name)) for name in taken]
        from_sets.update(taken)
    return tuple(result)
