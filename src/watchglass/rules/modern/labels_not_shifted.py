"""LabelsNotShifted: the labels of a language model are the tokens that it is given, or are moved twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.token_labels import attention_over_tokens, moved
from watchglass.tables import StepView

#: By the place of the labels.
_SENTENCES = {
    "same": "each label is the token at its own position, which the model is given there",
    "second": "each label is the second token after its position, not the next one",
}
_SYMPTOMS = {"same": "labels_are_inputs", "second": "labels_moved_twice"}


class LabelsNotShifted(Rule):
    """The labels of a language model were not moved by one position, or were moved twice.

    Looks at: the labels of the loss, the tokens that the model embeds, the positions that attention sees, and a few
        predictions.
    Fires when: in `patience` looks in a row each label is the token at its own position, the model sees no later
        tokens (causal attention, or one recurrent module of one direction), and in the last of them at least `right` of
        its predictions are right, also those of first positions: it copies what it is given. Or, in as many looks, each
        label is the second token after its position. Encoders, masked tokens, autoencoders, and models that move their
        tokens themselves are not reported.
    Usual causes: targets that are the inputs, logits cut at the wrong end; labels that were moved and are given to a
        model that moves them itself, as those of Hugging Face do.
    What to try: predict the next token, by logits[:, :-1] against tokens[:, 1:]; to a model that moves labels itself,
        give the tokens as labels.
    Costs: the fact token_targets, looked at in a few captured steps.
    Source: exact; Hugging Face documentation of language models; house: `patience`, `right`.
    """

    default = True
    needs = (Needs(facts=("token_targets",), why="to see labels, tokens and attention"),)

    patience: int = parameter(2, help="looks in a row in which this holds", unit="captures", ge=1)
    right: float = parameter(0.9, help="share of predictions that copy the inputs", unit="ratio", ge=0.0, le=1.0)

    #: Looks in a row, by the place of the labels.
    looks: dict[str, int] = state(dict)
    #: Looks in all.
    seen: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        for fact in view.facts("token_targets"):
            if view.mode is Mode.TRAIN:
                self.seen += 1
                place = self._place(fact.data)
                self.looks = {place: self.looks.get(place, 0) + 1} if place else {}
                if self.looks.get(place, 0) >= self.patience and (place != "same" or self._copies(fact.data)):
                    yield self._found(view, fact.data, place)

    def applicable(self, view: StepView) -> str:
        """Not where no tokens with a class label each show."""
        return "" if self.seen else "no tokens with a class label for each show in the training steps"

    def _place(self, data: dict[str, Any]) -> str:
        """Where the labels are, if that is a mistake."""
        places = {moved(each) for each in data["losses"]}
        if len(places) != 1 or not places <= _SENTENCES.keys():
            return ""
        return "" if places == {"same"} and not _sees_no_later(data) else places.pop()

    def _copies(self, data: dict[str, Any]) -> bool:
        """Whether the model has learned to return what it is given."""
        return all((each["right"] or 0.0) >= self.right for each in data["losses"])

    def _found(self, view: StepView, data: dict[str, Any], place: str) -> Finding:
        judged = sum(each["judged"] for each in data["losses"])
        right = min(each["right"] or 0.0 for each in data["losses"])
        copies = f", and {right:.0%} of the predictions are right" if place == "same" else ""
        return self.finding(
            view,
            severity=Severity.WARNING,
            subject=f"labels at the {place} position",
            value=float(list(data["losses"][0]["agreeing"]).index(place)),
            limit=1.0,
            message=f"{_SENTENCES[place]} ({judged} compared){copies}",
            symptoms=(_SYMPTOMS[place],),
        )


def _sees_no_later(data: dict[str, Any]) -> bool:
    """Whether the model is one of one sequence that certainly sees no later tokens."""
    calls, recurrent = attention_over_tokens(data), data["recurrent"]
    if data["embedded"] != 1 or len(recurrent) > 1 or any(recurrent):
        return False
    return all(each["next"] == 0 for each in calls) if calls else bool(recurrent) and not data["attention"]
