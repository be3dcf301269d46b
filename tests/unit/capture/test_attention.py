"""The largest logit and the entropy of attention heads, against attention written out in float64."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captured_parts import Stage
from watchglass.capture.pytorch.tensors.attention import Attention
from watchglass.capture.pytorch.tensors.attention_rows import rows_of_attention, spread
from watchglass.capture.pytorch.tensors.module_entry import ModuleEntry
from watchglass.records import Role

PARTS = (Attention, ModuleEntry)
WIDTH, HEADS, LENGTH, BATCH = 8, 2, 5, 3


def written_out(query: Tensor, key: Tensor, added: Any = None) -> tuple[Tensor, Tensor]:
    """Largest logit and entropy of each row, by head, from ``(batch, heads, length, size)``."""
    logits = query.double() @ key.double().transpose(-1, -2) / math.sqrt(query.shape[-1])
    if added is not None:
        logits = logits + added
    shares = logits.softmax(-1)
    entropy = -(shares * shares.clamp(min=1e-300).log()).sum(-1)
    return logits.amax(-1).transpose(0, 1).flatten(1), entropy.transpose(0, 1).flatten(1)


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found).double(), torch.as_tensor(expected).double(), rtol=1e-5, atol=1e-5
    )


def by_head(stage: Stage, name: str) -> Tensor:
    return torch.stack([stage.only(f"{name}.{head}") for head in range(HEADS)])


@pytest.fixture
def heads() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(BATCH, HEADS, LENGTH, 4, generator=generator) * 3 for _ in range(2))  # type: ignore[return-value]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(4))


# -- rows ---------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_attention_written_out(heads: tuple[Tensor, Tensor]) -> None:
    largest, entropy, whole = rows_of_attention(*heads)
    expected = written_out(*heads)
    assert_close(largest, expected[0])
    assert_close(entropy, expected[1])
    assert whole


@pytest.mark.parametrize("form", ["bool", "float", "causal", "per head"])
def test_what_is_masked_does_not_count(heads: tuple[Tensor, Tensor], form: str) -> None:
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    if form == "per head":
        allowed = allowed.expand(1, HEADS, LENGTH, LENGTH).clone()
        allowed[0, 1] = True
    added = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
    mask = {"bool": allowed, "float": added, "causal": None, "per head": allowed}[form]
    largest, entropy, _ = rows_of_attention(*heads, mask, causal=form == "causal")
    expected = written_out(*heads, added)
    assert_close(largest, expected[0])
    assert_close(entropy, expected[1])
    assert torch.isfinite(largest).all()


def test_a_row_that_sees_nothing_counts_as_the_others_and_is_not_called_broken(heads: tuple[Tensor, Tensor]) -> None:
    allowed = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    allowed[0, :, 1] = False
    largest, entropy, _ = rows_of_attention(*heads, allowed)
    expected = [values.reshape(HEADS, BATCH, LENGTH) for values in written_out(*heads)]
    for found, right in zip((largest, entropy), expected, strict=True):
        seen = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        seen[0, 1] = False
        assert_close(found.reshape(HEADS, BATCH, LENGTH)[:, 0, 1], right[:, seen].mean(1))


def test_broken_queries_show(heads: tuple[Tensor, Tensor]) -> None:
    heads[0][0, 1, 2, 0] = math.nan
    largest, entropy, _ = rows_of_attention(*heads)
    assert largest.isnan().sum() == 1
    assert entropy[1].isnan().any()
    assert torch.isfinite(entropy[0]).all()


def test_fewer_keys_than_queries_in_heads_serve_several(heads: tuple[Tensor, Tensor]) -> None:
    query, key = heads
    query = torch.cat([query, query + 1], 1)
    largest, entropy, _ = rows_of_attention(query, key, scale=0.5)
    logits = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.5
    assert_close(largest, logits.amax(-1).transpose(0, 1).flatten(1))
    assert_close(entropy, torch.special.entr(logits.softmax(-1)).sum(-1).transpose(0, 1).flatten(1))
    with pytest.raises(ValueError, match="do not fit"):
        rows_of_attention(query[:, :3], key)


@pytest.mark.parametrize("axes", [2, 3])
def test_without_an_axis_of_heads_there_is_one(heads: tuple[Tensor, Tensor], axes: int) -> None:
    query, key = (value[:, 0] if axes == 3 else value[0, 0] for value in heads)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().expand(*query.shape[:-1], LENGTH)
    largest, _, _ = rows_of_attention(query, key, mask)
    four = [value.reshape(-1, 1, LENGTH, 4) for value in (query, key)]
    assert_close(largest, rows_of_attention(*four, causal=True)[0])


def test_the_cost_is_bounded_and_rows_come_from_everywhere() -> None:
    query, key = torch.randn(32, 2, 64, 4), torch.randn(32, 2, 64, 4)
    largest, _, whole = rows_of_attention(query, key, causal=True, most_logits=4 * 2 * 16 * 64)
    assert largest.shape == (2, 4 * 16 + 4)
    assert not whole
    chosen, places = spread(32, 4), spread(64, 16)
    expected = written_out(query, key, torch.full((64, 64), -math.inf).triu(1))[0].reshape(2, 32, 64)
    assert_close(largest[:, : 4 * 16], expected[:, chosen][:, :, places].flatten(1))


@pytest.mark.parametrize("form", ["bool", "float", "causal", ""])
def test_the_longest_query_is_among_the_rows(form: str) -> None:
    """Of each sequence and head another one; its largest logit among the keys that it sees is the largest of all."""
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(2, 4, 64, 8, generator=generator) for _ in range(2))
    for sequence, head in itertools.product(range(2), range(4)):
        query[sequence, head, 9 + 17 * sequence + 5 * head] *= 40
    allowed = torch.ones(64, 64, dtype=torch.bool).tril()
    added = torch.zeros(64, 64).masked_fill(~allowed, -math.inf)
    mask = {"bool": allowed, "float": added}.get(form)
    largest, entropy, whole = rows_of_attention(query, key, mask, causal=form == "causal", most_logits=2 * 4 * 8 * 64)
    assert (largest.shape, entropy.shape, whole) == ((4, 2 * 8 + 2), (4, 2 * 8), False)
    expected = written_out(query, key, added if form else None)[0]
    assert_close(largest[:, -2:], expected.reshape(4, 2, 64).amax(-1))


def test_the_longest_query_meets_the_keys_of_its_group() -> None:
    query, key = torch.randn(1, 4, 64, 8), torch.randn(1, 2, 64, 8)
    query[:, :, 20] *= 40
    largest, _, _ = rows_of_attention(query, key, most_logits=4 * 64)
    assert_close(largest[:, -1:], written_out(query, key.repeat_interleave(2, 1))[0].amax(-1, keepdim=True))


@pytest.mark.parametrize(("length", "most"), [*itertools.product((1, 2, 5, 64, 1000), (1, 3, 16, 64, 5000))])
def test_places_are_spread_out_and_no_more_than_allowed(length: int, most: int) -> None:
    places = list(range(length))[spread(length, most)]
    assert 1 <= len(places) <= max(1, most)
    if most >= length:
        assert len(places) == length


# -- modules ------------------------------------------------------------------------------------------------------


class Written(nn.Module):
    """Attention as small language models have it, with modules around the function."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> Any:
        return (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.both(x).chunk(3, -1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(x)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def test_attention_is_named_by_the_module_that_computes_it(run_path: Path, x: Tensor) -> None:
    model = nn.Sequential(nn.Sequential(Written()), nn.Linear(WIDTH, 1))
    with Stage(run_path, PARTS, model, collections=["attention"]) as stage:
        stage.call(model, x)
        query, key, _ = model[0][0].heads(x)
        largest, entropy = written_out(query, key, torch.full((LENGTH, LENGTH), -math.inf).triu(1))
        assert_close(by_head(stage, "0.0.attention_logits_max"), largest.detach())
        assert_close(by_head(stage, "0.0.attention_entropy"), entropy.detach())
        assert len(stage.names) == 2 * HEADS
        assert stage.tags("0.0.attention_entropy.1") == ("attention",)
        assert stage.role("0.0.attention_entropy.1") is Role.CUSTOM
        assert stage.saving.items["0.0.attention_entropy.1"][1].place.module_type == "Written"


MASKS: list[dict[str, Any]] = [
    {},
    {"attn_mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)},
    {"attn_mask": torch.zeros(LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, -math.inf)},
    {"attn_mask": torch.randn(BATCH * HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(6))},
    {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])},
    {"attn_mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), "is_causal": True},
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_multi_head_attention_is_seen_however_it_is_computed(
    run_path: Path, x: Tensor, masks: dict[str, Any], need_weights: bool
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(x, x, x, need_weights=need_weights, **masks)[0]  # type: ignore[no-any-return]

    model = Model()
    with Stage(run_path, PARTS, model, collections=["attention"]) as stage:
        random = torch.get_rng_state()
        output = stage.call(model, x)
        after = torch.get_rng_state()
        largest, entropy = (by_head(stage, f"attend.{name}") for name in ("attention_logits_max", "attention_entropy"))
    torch.set_rng_state(random)
    assert torch.equal(output, model(x))
    assert torch.equal(after, torch.get_rng_state())
    query, key = _projected(model.attend, x)
    expected = written_out(query, key, _added(masks))
    assert_close(largest, expected[0].detach())
    assert_close(entropy, expected[1].detach())


def _projected(module: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    parts = F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    query, key = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts[:2])
    return query, key


def _added(masks: dict[str, Any]) -> Tensor:
    added = torch.zeros(BATCH, HEADS, LENGTH, LENGTH)
    mask, padding = masks.get("attn_mask"), masks.get("key_padding_mask")
    if mask is not None:
        mask = torch.zeros(mask.shape).masked_fill(mask, -math.inf) if mask.dtype is torch.bool else mask
        added = added + (mask.reshape(BATCH, HEADS, LENGTH, LENGTH) if mask.dim() == 3 else mask)
    if padding is not None:
        added = added.masked_fill(padding[:, None, None], -math.inf)
    return added


def test_a_few_sequences_of_a_large_batch_stand_for_it(run_path: Path) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=False))
    x = torch.randn(LENGTH, 16, WIDTH)
    weights = nn.MultiheadAttention(WIDTH, HEADS)

    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = weights

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(x, x + 1, x + 1)[0]  # type: ignore[no-any-return]

    crossed = Crossed()
    with Stage(run_path, PARTS, model, crossed, collections=["attention"]) as stage:
        stage.call(model, x)
        stage.call(crossed, x)
    assert stage.only("0.self_attn.attention_entropy.0").numel() == 4 * LENGTH
    found = stage.only("model_2.attend.attention_logits_max.1")
    batch = x.transpose(0, 1)[spread(16, 4)]
    query, key = _projected(weights, batch)[0], _projected(weights, batch + 1)[1]
    assert_close(found, written_out(query, key)[0][1].detach())


def test_under_autocast_the_training_keeps_its_gradients(run_path: Path, x: Tensor) -> None:
    def gradients(parts: tuple[Any, ...]) -> list[Tensor]:
        torch.manual_seed(0)
        attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attend = attend

            def forward(self, x: Tensor) -> Tensor:
                once = self.attend(x, x, x)[0]
                return self.attend(once, once, once)[0]  # type: ignore[no-any-return]

        model = Model()
        with Stage(run_path, parts, model, collections=["attention"]) as stage:
            with torch.autocast("cpu", torch.bfloat16):
                output = stage.call(model, x)
            output.float().sum().backward()
            assert len(stage.saving.tensors.get("attend.attention_entropy.0", [])) == (2 if parts else 0)
            assert not stage.facts
        return [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]

    assert all(map(torch.equal, gradients(PARTS), gradients(())))


def test_attention_that_cannot_be_read_is_said_once_and_harms_nothing(run_path: Path, x: Tensor) -> None:
    class Windows(nn.Module):
        """Attention within windows: another axis than is known."""

        def forward(self, x: Tensor) -> Tensor:
            windows = x.reshape(BATCH, 1, 1, LENGTH, WIDTH)
            return F.scaled_dot_product_attention(windows, windows, windows).reshape(x.shape)

    model = nn.Sequential(Windows(), Written())
    with Stage(run_path, PARTS, model, collections=["attention"]) as stage:
        expected = model(x)
        for _ in range(2):
            assert torch.equal(stage.call(model, x), expected)
        names = stage.names
    ((kind, source, data),) = stage.facts
    assert (kind, source) == ("attention_unreadable", "0")
    assert "do not fit" in data.reason
    assert len(names) == 2 * HEADS


def test_calls_of_no_captured_forward_are_not_heard_and_the_functions_are_restored(run_path: Path, x: Tensor) -> None:
    before = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
    model = nn.Sequential(Written())
    with Stage(run_path, PARTS, model, collections=["attention"]) as stage:
        assert before == (F.scaled_dot_product_attention, F.multi_head_attention_forward)
        stage.call(model, x)
        assert F.scaled_dot_product_attention is not before[0]
        saved = len(stage.saving.tensors["0.attention_entropy.0"])
        model(x)

        class Raising(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                raise RuntimeError("no")

        model.append(Raising())
        stage.models.refresh()
        with pytest.raises(RuntimeError, match="no"):
            stage.call(model, x)
        stage.hook.port.clock.close()
        names = stage.names
        model[0](x)
        assert stage.names == names
        assert len(stage.saving.tensors["0.attention_entropy.0"]) == saved + 1
    assert before == (F.scaled_dot_product_attention, F.multi_head_attention_forward)


def test_nothing_is_wrapped_where_nothing_asks(run_path: Path, x: Tensor) -> None:
    before = F.scaled_dot_product_attention
    model = nn.Sequential(Written())
    with Stage(run_path, PARTS, model) as stage:
        stage.call(model, x)
        assert F.scaled_dot_product_attention is before
    assert not stage.names
