"""Attention inside compiled code: the same values as without compilation, under the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import watchglass
from watchglass import Run, open_run
from watchglass.config import RuleSpec
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.rules import capture_for, expand
from watchglass.view import explain_verdict

# What the compiler says of itself, and that a collection is empty.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("compiler")]

TOKENS, WIDTH, HEADS = 11, 8, 2


class Attention(nn.Module):
    def __init__(self, written_out: bool = False, mask: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.written_out, self.mask = written_out, mask

    def forward(self, x: Tensor) -> Tensor:
        heads = [each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)]
        query, key, value = heads
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        if self.written_out:
            scores = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
            mixed = scores.softmax(-1) @ value
        elif self.mask:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=~later, scale=0.9)
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, **settings: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(**settings)

    def forward(self, x: Tensor) -> Tensor:
        # By name: PyTorch shows hooks no arguments then.
        return x + self.attention(x=self.norm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    def __init__(self, checkpointed: bool = False, **settings: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.blocks = nn.ModuleList(Block(**settings) for _ in range(2))
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def eager(model: nn.Module) -> nn.Module:
    return model


def whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager", fullgraph=True)  # type: ignore[return-value]


def without_python(model: nn.Module) -> nn.Module:
    """Code that calls none of the functions that the script calls, as that of most backends."""
    return torch.compile(model, backend="aot_eager", fullgraph=True)  # type: ignore[return-value]


def blocks(model: nn.Module, backend: str = "eager") -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend=backend, fullgraph=True)
    return model


def inductor_blocks(model: nn.Module) -> nn.Module:
    return blocks(model, "inductor")


def train(
    path: Path, model: nn.Module, way: Callable[[nn.Module], nn.Module], steps: int = 5, **settings: Any
) -> Run:  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1)
    settings = {"collections": ["attention"], "save_interval": 2, "strict": True, **settings}
    with watchglass.watch(model, run=path, **settings):
        call = way(model)
        for _ in range(steps):
            tokens = torch.randint(TOKENS, (4, 7), generator=generator)
            optimizer.zero_grad()
            F.cross_entropy(call(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
    return open_run(path)


def same_attention(run: Run, expected: Run) -> None:
    names = [
        f"blocks.{block}.attention.attention_{what}.{head}"
        for block in range(2)
        for what in ("entropy", "logits_max")
        for head in range(HEADS)
    ]
    assert sorted(name for name in run.tensor_names() if "attention_" in name) == sorted(names)
    for name in names:
        ours, theirs = run.tensor(name), expected.tensor(name)
        assert ours.steps() == theirs.steps() == [0, 2, 4]
        for step in (0, 2, 4):
            for reduction in ("max", "mean", "count"):
                value = theirs.reduction(step, reduction)
                assert ours.reduction(step, reduction) == pytest.approx(value, rel=2e-3, abs=1e-4), (name, step)


#: Each way to compile, and each choice of the others with a quick way and with a real compiler, which takes seconds.
WAYS = [
    (whole, False, False),
    (whole, False, True),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in [
            (whole, True, False),
            (blocks, False, True),
            (inductor_blocks, True, True),
        ]
    ),
]


@pytest.mark.parametrize(("way", "checkpointed", "mask"), WAYS)
def test_it_is_that_of_the_model_without_compilation(
    tmp_path: Path, way: Callable[[nn.Module], nn.Module], checkpointed: bool, mask: bool
) -> None:
    expected = train(tmp_path / "eager", Decoder(mask=mask), eager)
    counters.clear()
    run = train(tmp_path / "compiled", Decoder(checkpointed, mask=mask), way)
    same_attention(run, expected)
    if way is whole:
        assert counters["stats"]["unique_graphs"] == 2, "one graph for captured steps, one for the others"


def train_compiled(path: Path, model: nn.Module, rules: tuple[str, ...] = (), *, compiled_first: bool = False) -> Run:
    """Twenty steps of two micro-batches, of which every third is captured."""
    wanted = capture_for(expand([RuleSpec(name) for name in rules])) if rules else {}
    call = without_python(model) if compiled_first else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1)
    with watchglass.watch(model, run=path, **{**wanted, "save_interval": 3, "strict": True}):
        call = call if compiled_first else without_python(model)
        for _ in range(20):
            for _ in range(2):
                tokens = torch.randint(TOKENS, (4, 7), generator=generator)
                F.cross_entropy(call(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return open_run(path)


@pytest.mark.parametrize(
    ("written_out", "rules", "compiled_first"),
    [
        (False, (), False),
        (True, ("default", "llm", "system"), False),
        pytest.param(True, (), True, marks=pytest.mark.slow),
        pytest.param(False, ("default", "llm", "system"), True, marks=pytest.mark.slow),
    ],
)
def test_there_are_two_graphs_whatever_is_observed_in_the_model(
    tmp_path: Path, written_out: bool, rules: tuple[str, ...], compiled_first: bool
) -> None:
    """Facts and statistics of attention come from functions that the model calls, in some of its forwards."""
    counters.clear()
    run = train_compiled(tmp_path / "run", Decoder(written_out=written_out), rules, compiled_first=compiled_first)
    assert run.tensor("head.output").steps() == [0, 3, 6, 9, 12, 15, 18]
    # Of a model that was compiled before it was watched, the hooks around it are compiled by themselves: the one that
    # sees its output, and where the rules want inputs the one that sees them.
    around = (1 + bool(rules)) if compiled_first else 0
    assert counters["stats"]["unique_graphs"] == 2 + around


def test_models_of_one_class_that_are_watched_in_turn_share_their_graphs(tmp_path: Path) -> None:
    """As in a cross-validation: the compiler compiles a function eight times and then no more, or raises."""
    counters.clear()
    for fold in range(5):
        train_compiled(tmp_path / str(fold), Decoder())
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.slow
def test_checkpointing_of_compiled_blocks_saves_the_same_tensors_when_it_runs_them_again(tmp_path: Path) -> None:
    """The forward of a captured step is run again in its backward, when nothing is captured: by the same graph."""

    def losses(run: Path | None) -> list[float]:
        torch.compiler.reset()
        model = Decoder(checkpointed=True)
        seen: list[float] = []
        hook = None if run is None else watchglass.watch(model, run=run, save_interval=2, strict=True)
        call, optimizer = blocks(model, "aot_eager"), torch.optim.SGD(model.parameters(), 0.1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(4):
            tokens = torch.randint(TOKENS, (4, 7), generator=generator)
            optimizer.zero_grad()
            loss = F.cross_entropy(call(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        if hook is not None:
            hook.close()
        return seen

    assert losses(tmp_path / "run") == pytest.approx(losses(None), rel=1e-5)
    assert open_run(tmp_path / "run").tensor("blocks.0.output").steps() == [0, 2]


def test_rules_name_the_cure_where_compiled_code_hides_attention(tmp_path: Path) -> None:
    rules = [RuleSpec(name) for name in ("AttentionLogitGrowth", "AttentionEntropyCollapse")]
    settings = {**capture_for(rules), "save_interval": 2}
    run = train(tmp_path / "hidden", Decoder(written_out=True), without_python, **settings)
    evaluation = replay(str(tmp_path / "hidden"), rules)
    assert {status.status for status in evaluation.statuses} == {Status.NOT_APPLICABLE}
    assert {status.reason for status in evaluation.statuses} == {
        "no attention was captured: the model is compiled, and has none or attention that compiled code does not show; "
        "to evaluate the rule, compute it by torch.nn.functional.scaled_dot_product_attention, or exclude it from "
        "compilation by attention.forward = torch.compiler.disable(attention.forward)"
    }
    text = "\n".join(row.text for row in explain_verdict(verdict(run, evaluation)))
    assert "AttentionLogitGrowth, AttentionEntropyCollapse not applicable: no attention was captured: the model" in text


def test_the_cures_work(tmp_path: Path) -> None:
    def without_attention(model: nn.Module) -> nn.Module:
        for block in model.blocks:  # type: ignore[union-attr]
            block.attention.forward = torch.compiler.disable(block.attention.forward)  # type: ignore[union-attr,method-assign]
        return torch.compile(model, backend="eager")  # type: ignore[return-value]

    expected = train(tmp_path / "eager", Decoder(written_out=True), eager)
    same_attention(train(tmp_path / "excluded", Decoder(written_out=True), without_attention), expected)
