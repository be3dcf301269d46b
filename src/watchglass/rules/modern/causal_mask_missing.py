"""CausalMaskMissing: attention sees the tokens that the model is to predict."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.rules.token_labels import MOVED, attention_over_tokens, moved
from watchglass.tables import StepView


class CausalMaskMissing(Rule):
    """Attention of a language model sees the tokens that the model is to predict.

    Looks at: the labels of the loss, the tokens that the model embeds, and which positions attention sees.
    Fires when: the label of each position is the token at the next one, and all attention of the tokens to themselves
        sees the next position, in `patience` looks in a row. In a model of two sequences (encoder and decoder) only
        attention counts whose queries and keys are known to come from one tensor. Nothing is reported where any of it
        is causal, where part of the positions see the next one (a prefix), where the script does something unknown to
        the weights after their softmax, or where attention does not show (compiled code, other libraries).
    Usual causes: a forgotten mask or is_causal=True, an encoder layer that is used as a decoder, a mask of the wrong
        sense (True hides in nn.MultiheadAttention, and shows in scaled_dot_product_attention).
    What to try: is_causal=True, or generate_square_subsequent_mask; compare the loss with that of a text cut short.
    Costs: the fact token_targets, looked at in a few captured steps.
    Source: exact; Vaswani et al., Attention Is All You Need, 2017, 3.2.3; house: `patience`.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("token_targets",), why="to see labels, tokens and attention"),)

    patience: int = parameter(2, help="looks in a row in which this holds", unit="captures", ge=1)

    looks: Streaks = state(Streaks)
    #: Looks in all.
    seen: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        for fact in view.facts(facts.TokensAndLabels):
            if view.mode is Mode.TRAIN:
                self.seen += 1
                calls = _open_calls(fact)
                if self.looks.follow(view.mode_step, calls) >= self.patience:
                    yield self._found(view, fact, calls)

    def applicable(self, view: StepView) -> str:
        """Not where no tokens with a class label each show."""
        return "" if self.seen else "no tokens with a class label for each show in the training steps"

    def _found(self, view: StepView, fact: facts.TokensAndLabels, calls: int) -> Finding:
        judged = sum(each.judged for each in fact.losses)
        return self.finding(
            view,
            subject="attention",
            value=1.0,
            limit=0.0,
            message=f"each label is the token at the next position ({judged} compared), and attention sees that "
            f"position in {f'all {calls} calls' if calls > 1 else 'its only call'}",
            symptoms=("next_token_visible",),
            evidence={"compared": judged, "calls": calls},
            since=self.looks.since(),
        )


def _open_calls(fact: facts.TokensAndLabels) -> int:
    """Calls of attention that see what is to be predicted; 0 where any does not, or where that is not certain."""
    if not fact.losses or any(moved(each) != "next" for each in fact.losses):
        return 0
    calls = attention_over_tokens(fact)
    if any(each.next is None or each.next < MOVED for each in calls):
        return 0
    if fact.embedded > 1 or fact.recurrent:
        calls = [each for each in calls if each.itself]
    return sum(each.calls for each in calls)
