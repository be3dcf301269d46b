"""LabelsNotShifted: the labels of a language model are the tokens that it is given, or are moved twice."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
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

    Looks at: the labels of the loss, the tokens that the model embeds, the positions that attention sees, a few
        predictions, and the accuracy.
    Fires when: in `patience` looks in a row each label is the token at its own position, the model sees no later
        tokens (causal attention, or one recurrent module of one direction), and it copies what it is given: at least
        `right` of a few predictions are right, also those of first positions, or the accuracy is higher than it can be
        without these. Or, in as many looks, each label is the second token after its position. Encoders, masked tokens,
        autoencoders, and models that move their tokens themselves are not reported.
    Usual causes: targets that are the inputs, logits cut at the wrong end; labels that were moved and are given to a
        model that moves them itself, as those of Hugging Face do.
    What to try: predict the next token, by logits[:, :-1] against tokens[:, 1:]; to a model that moves labels itself,
        give the tokens as labels.
    Costs: the fact token_targets, looked at in a few captured steps.
    Source: exact; Hugging Face documentation of language models; house: `patience`, `right`.
    """

    needs = (
        Needs(facts=("token_targets",), why="to see labels, tokens and attention"),
        Needs(scalars=("accuracy",), optional=True, why="to see later on that the model copies"),
    )

    patience: int = parameter(2, help="looks in a row in which this holds", unit="captures", ge=1)
    right: float = parameter(0.9, help="share of predictions that copy the inputs", unit="ratio", ge=0.0, le=1.0)

    #: Looks in a row, by the place of the labels; of the latest one the labels compared, and positions.
    looks: Streaks = state(Streaks)
    judged: int = state(int)
    length: int = state(int)
    #: Looks in all.
    seen: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        yield from self._evaluated(view)
        if view.mode is not Mode.TRAIN:
            return
        for fact in view.facts(facts.TokensAndLabels):
            right = self._take(view, fact)
            if self.looks.times("second") >= self.patience:
                yield self._found(view, "second")
            if right >= self.right:
                yield from self._copied(view, right)
                return
        yield from self._accurate(view, view.scalar("accuracy"))

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a last evaluation."""
        return self._evaluated(view)

    def applicable(self, view: StepView) -> str:
        """Not where no tokens with a class label each show."""
        return "" if self.seen else "no tokens with a class label for each show in the training steps"

    def _take(self, view: StepView, fact: facts.TokensAndLabels) -> float:
        """Remember a look; returns the share of the predictions that are right."""
        self.seen += 1
        losses = fact.losses
        place = _place(fact)
        for each in _SENTENCES:
            self.looks.follow(view.mode_step, each == place, each)
        self.judged = sum(each.judged for each in losses)
        # The accuracy of a run with several losses is of all of them.
        self.length = losses[0].length if len(losses) == 1 else 0
        return min((each.right or 0.0 for each in losses), default=0.0)

    def _evaluated(self, view: StepView) -> Iterable[Finding]:
        for stretch in view.stretches:
            if stretch.mode is Mode.EVAL:
                yield from self._accurate(view, stretch.means.get("accuracy"))

    def _accurate(self, view: StepView, accuracy: float | None) -> Iterable[Finding]:
        """A finding where first positions are right, too, of which a model that moves its tokens knows nothing."""
        if accuracy is not None and self.length and accuracy >= 1 - 0.5 / self.length:
            yield from self._copied(view, accuracy)

    def _copied(self, view: StepView, right: float) -> Iterable[Finding]:
        if self.looks.times("same") >= self.patience:
            words = f", and {in_percent(right)} of the predictions are right"
            yield self._found(view, "same", words, right=right)

    def _found(self, view: StepView, place: str, copies: str = "", **measured: float) -> Finding:
        return self.finding(
            view,
            subject=f"labels at the {place} position",
            value=float(place == "second") * 2,
            limit=1.0,
            message=f"{_SENTENCES[place]} ({self.judged} compared){copies}",
            symptoms=(_SYMPTOMS[place],),
            evidence=measured,
            since=self.looks.since(place),
        )


def _place(fact: facts.TokensAndLabels) -> str:
    """Where the labels are, if that is a mistake."""
    places = {moved(each) for each in fact.losses}
    if len(places) != 1 or not places <= _SENTENCES.keys():
        return ""
    return "" if places == {"same"} and not _sees_no_later(fact) else places.pop()


def _sees_no_later(fact: facts.TokensAndLabels) -> bool:
    """Whether the model is one of one sequence that certainly sees no later tokens."""
    calls, recurrent = attention_over_tokens(fact), fact.recurrent
    if fact.embedded != 1 or len(recurrent) > 1 or any(recurrent):
        return False
    return all(each.next == 0 for each in calls) if calls else bool(recurrent) and not fact.attention
