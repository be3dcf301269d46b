"""Causes and symptoms of faults in training runs, and the weights between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from watchglass.records import Cause
from watchglass.rules.knowledge.phrases import in_words_of
from watchglass.rules.knowledge.templates import Placeholder, Template


class Link(NamedTuple):
    """How strongly a symptom supports a cause."""

    symptom: str  #: Identifier of the symptom.
    cause: str  #: Identifier of the cause.
    #: In (0, 1): the probability that the cause alone would explain the symptom. In (-1, 0): the share by which the
    #: symptom lowers the odds of the cause.
    weight: float


class Symptom(NamedTuple):
    """A symptom that a rule can observe."""

    id: str  #: Short identifier, ``"gradient_growth"``.
    means: str  #: One sentence.
    breaks: bool = False  #: Whether every later value may be NaN, for any cause.
    ruins: bool = False  #: Whether an error with it leaves a model whose later values show no further fault.
    #: Whether it is read off the program itself and not off its effects. Then it proves its likeliest cause, which
    #: holds from the first step on.
    exact: bool = False
    #: Whether what an exact symptom states may begin at any step, such as a learning rate of zero. Then it explains
    #: nothing that was seen before.
    begins: bool = False
    #: Whether an exact symptom is read off values that a fault before it changes too. It also begins.
    values: bool = False
    #: Whether its causes are measured directly, so that the silence of a rule does not count against them.
    measured: bool = False
    machine: bool = False  #: Whether it is about time, memory or the machine, which values that are NaN do not change.
    #: Whether it says what the cure of its causes gains or costs, so that the diagnosis of such a cause has it, for or
    #: against, and the headline states it too.
    joins: bool = False


#: What a script may do already, so that a sentence that advises it is left out; found by ``watchglass.rules.already``.
ALREADY = ("clips_gradients", "scales_loss", "warms_up")


@dataclass(frozen=True)
class Knowledge:
    """The knowledge behind diagnoses, as :func:`~watchglass.rules.load_knowledge` reads it from files.

    Attributes:
        causes: By identifier.
        symptoms: By identifier.
        links: Weight by symptom and cause.
        consequences: By cause, later symptoms that follow from it and are no evidence for it.
        advice: By cause, templates of concrete advice, the most specific one first.
        unless: By cause and sentence of what to try, what of :data:`ALREADY` makes that sentence superfluous.
        placeholders: Placeholders of templates, by name.
        ruled_out_by: By cause, rules; if one of them does not apply to the run, the cause is ruled out.
        ruled_out_if: By cause, what of :data:`ALREADY` rules it out where the script does so.
        seen_by: By cause, rules that look for it.
        of_trees: Causes of boosted trees alone.
        also_of_trees: Causes of any model; all others are causes of networks alone.
        found_nothing: In (-1, 0]: the share of a cause's odds that is removed if one of these has no findings.
        unseen: By cause, those of these rules that have no findings.
        named_causes: Weights of the causes that a rule names itself, the first one first.
    """

    causes: Mapping[str, Cause] = field(default_factory=dict)
    symptoms: Mapping[str, Symptom] = field(default_factory=dict)
    links: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    consequences: Mapping[str, frozenset[str]] = field(default_factory=dict)
    advice: Mapping[str, tuple[Template, ...]] = field(default_factory=dict)
    unless: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    placeholders: Mapping[str, Placeholder] = field(default_factory=dict)
    ruled_out_by: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ruled_out_if: Mapping[str, str] = field(default_factory=dict)
    seen_by: Mapping[str, frozenset[str]] = field(default_factory=dict)
    of_trees: frozenset[str] = frozenset()
    also_of_trees: frozenset[str] = frozenset()
    found_nothing: float = 0.0
    unseen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    named_causes: tuple[float, ...] = ()

    def of_models(self, *, trees: bool) -> Knowledge:
        """The knowledge for a run, without the causes that its models cannot have.

        Args:
            trees: Whether they are boosted trees, and no networks. Causes about the machine are of any model, and
                symptoms that only trees have keep their causes.
        """
        machine = {cause for symptom, row in self.links.items() if self.symptoms[symptom].machine for cause in row}
        others = self.causes.keys() - self.of_trees - self.also_of_trees - machine
        links = self._links_without(others if trees else self.of_trees)
        return replace(self, links=links if trees else {each: row or self.links[each] for each, row in links.items()})

    def _links_without(self, causes: Collection[str]) -> dict[str, dict[str, float]]:
        return {
            symptom: {cause: weight for cause, weight in row.items() if cause not in causes}
            for symptom, row in self.links.items()
        }

    def where(self, not_applicable: Iterable[str], found_nothing: Iterable[str] = ()) -> Knowledge:
        """The knowledge for one run, after the rules without findings.

        Args:
            not_applicable: Rules that do not apply to the run; they rule out causes.
            found_nothing: Rules without findings; the causes that they look for become much less likely.
        """
        unfit, quiet = frozenset(not_applicable), frozenset(found_nothing)
        out = {cause for cause, by in self.ruled_out_by.items() if by & unfit}
        unseen = {cause: tuple(sorted(by & quiet)) for cause, by in self.seen_by.items() if by & quiet}
        return replace(self, links=self._links_without(out), unseen=unseen)

    def all_links(self) -> Iterator[Link]:
        """Every link as a row."""
        for symptom, row in self.links.items():
            for cause, weight in row.items():
                yield Link(symptom, cause, weight)

    def support(self, symptoms: Iterable[str]) -> dict[str, float]:
        """The evidence of symptoms for each cause, as added log odds: 0 for none, 3 for 0.95.

        Weights of independent symptoms combine as noisy-or (Pearl 1988, 4.3). The support of a cause is the sum of
        ``-log(1 - weight)``, multiplied by ``1 + weight`` for each symptom that contradicts it. It is multiplied by
        ``1 + found_nothing`` if a rule that looks for it has no findings, unless a symptom of it is measured.
        A symptom counts once; unknown ones do not count.
        """
        support: dict[str, float] = {}
        against: dict[str, float] = {}
        unseen = set(self.unseen)
        for symptom in dict.fromkeys(symptoms):
            for cause, weight in self.links.get(symptom, {}).items():
                if weight > 0:
                    support[cause] = support.get(cause, 0.0) - math.log1p(-weight)
                    if symptom in self.symptoms and self.symptoms[symptom].measured:
                        unseen.discard(cause)
                else:
                    against[cause] = against.get(cause, 1.0) * (1.0 + weight)
        for cause in unseen:
            against[cause] = against.get(cause, 1.0) * (1.0 + self.found_nothing)
        return {cause: odds * against.get(cause, 1.0) for cause, odds in support.items()}

    def silent(self, cause: str, symptoms: Iterable[str]) -> tuple[str, ...]:
        """Rules that look for a cause, have no findings, and so count against it beside these symptoms."""
        measured = (each.id for each in self._known(symptoms) if each.measured)
        shown = any(self.links.get(symptom, {}).get(cause, 0.0) > 0 for symptom in measured)
        return () if shown else self.unseen.get(cause, ())

    def named(self, causes: Iterable[str]) -> dict[str, float]:
        """The evidence for causes that a rule names, most likely first; only the first few count."""
        return {cause: -math.log1p(-weight) for cause, weight in zip(causes, self.named_causes, strict=False)}

    def ruled_out(self, already: Collection[str]) -> frozenset[str]:
        """The causes that a script cannot have that does this of :data:`ALREADY`."""
        return frozenset(cause for cause, does in self.ruled_out_if.items() if does in already)

    def likely(self, symptoms: Iterable[str], already: Collection[str] = ()) -> tuple[str, ...]:
        """Identifiers of up to three causes that these symptoms suggest, most likely first.

        Symptoms that join only count beside others, so alone they suggest none.

        Args:
            symptoms: The symptoms.
            already: What of :data:`ALREADY` the script does.
        """
        out = self.ruled_out(already)
        support = self.support(each for each in symptoms if each in self.symptoms and not self.symptoms[each].joins)
        return tuple(sorted((each for each in support if each not in out), key=lambda cause: -support[cause])[:3])

    def proven(self, symptoms: Iterable[str]) -> frozenset[str]:
        """Causes that these symptoms prove: of each exact symptom the likeliest one."""
        rows = [
            self.links[symptom]
            for symptom in symptoms
            if symptom in self.symptoms and self.symptoms[symptom].exact and self.links.get(symptom)
        ]
        return frozenset(max(row, key=row.__getitem__) for row in rows)

    def proven_from_start(self, symptoms: Iterable[str]) -> frozenset[str]:
        """Those of the causes that these symptoms prove that hold from the first step on."""
        return self.proven(each.id for each in self._known(symptoms) if not (each.begins or each.values))

    def proven_by_values(self, symptoms: Iterable[str]) -> bool:
        """Whether all exact symptoms among these are read off values, and there is one."""
        exact = [each for each in self._known(symptoms) if each.exact]
        return bool(exact) and all(each.values for each in exact)

    def breaks(self, symptoms: Iterable[str]) -> bool:
        """Whether one of these symptoms means that every later value may be NaN."""
        return any(each.breaks for each in self._known(symptoms))

    def ruins(self, symptoms: Iterable[str]) -> bool:
        """Whether an error with one of these symptoms leaves a model whose later values show no further fault."""
        return any(each.breaks or each.ruins for each in self._known(symptoms))

    def of_machine(self, symptoms: Iterable[str]) -> bool:
        """Whether one of these symptoms is about time, memory or the machine."""
        return any(each.machine for each in self._known(symptoms))

    def _known(self, symptoms: Iterable[str]) -> list[Symptom]:
        return [self.symptoms[symptom] for symptom in symptoms if symptom in self.symptoms]

    def joins(self, symptoms: Iterable[str], cause: str) -> bool:
        """Whether one of these symptoms is in every diagnosis of a cause, and in its headline."""
        return any(
            symptom in self.symptoms and self.symptoms[symptom].joins and cause in self.links.get(symptom, {})
            for symptom in symptoms
        )

    def scaled_by(self) -> tuple[tuple[str, str], ...]:
        """Pairs of the numbers that advice scales and the measured numbers that tell the factor."""
        scalings = [each.scaling for each in self.placeholders.values() if each.scaling is not None]
        return tuple(dict.fromkeys((each.number, each.by) for each in scalings))

    def cause(self, name: str) -> Cause:
        """The cause with an identifier; for an unknown one, a cause with only a title made of it."""
        return self.causes.get(name) or Cause(name, name.replace("_", " "), "", ())

    def advise(
        self, cause: str, known: Mapping[str, Any], already: Collection[str] = (), framework: str = ""
    ) -> tuple[str, ...]:
        """Advice against a cause, most promising first.

        Args:
            cause: Its identifier.
            known: Values by placeholder. If they suffice for a template, it replaces the first sentence, which has the
                same advice without them.
            already: What of :data:`ALREADY` the script does: sentences that advise it are left out.
            framework: The framework whose function names the sentences use; PyTorch's if there are none for it.
        """
        unless = self.unless.get(cause, {})
        first, *others = self.cause(cause).what_to_try or ("",)
        sentences = [each for each in others if unless.get(each) not in already]
        if first and unless.get(first) not in already:
            filled = (template.fill(self.placeholders, known) for template in self.advice.get(cause, ()))
            sentences.insert(0, next((each for each in filled if each is not None), first))
        return tuple(filter(None, (in_words_of(framework, each) for each in sentences)))
