"""Private names of PyTorch that we use are listed in docs/pytorch.md, with the reason, and PyTorch still has them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

#: Of Python itself, or ends of names of facts.
_OTHERS = {"_getframe", "_fields", "_replace", "_unavailable", "_more"}
_PRIVATE = re.compile(r"(?<!\w)_[A-Za-z]\w*")


def _nodes() -> Iterator[tuple[Any, str]]:
    x = torch.ones(2, 2, requires_grad=True)
    yield (x + x).grad_fn, "_saved_alpha"
    yield (x * x).grad_fn, "_saved_self _saved_other"
    yield (x**2).grad_fn, "_saved_exponent"
    yield x.clamp(0, 1).grad_fn, "_saved_min _saved_max"
    yield torch.nn.functional.softplus(x).grad_fn, "_saved_beta _saved_threshold"
    yield x.mean(1, keepdim=True).grad_fn, "_saved_dim _saved_keepdim _saved_self_sym_sizes"


def _softmax() -> Any:
    return torch.ones(2, 3, requires_grad=True).softmax(1).grad_fn


def _leaf() -> Any:
    return torch.ones(1, requires_grad=True)


def _in_source(file: str, text: str) -> bool:
    # The compiler takes seconds to import.
    return text in (Path(torch.__file__).parent / file).read_text(encoding="utf-8")


def _operator(namespace: str) -> bool:
    return any(name.startswith(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names())


#: Each name, or prefix, and how to see whether PyTorch has it.
LISTED: dict[str, Callable[[], bool]] = {
    "_version": lambda: torch.ones(1)._version == 0,
    "_parameters": lambda: "weight" in nn.Linear(1, 1)._parameters,
    "_saved_": lambda: all(hasattr(node, name) for node, names in _nodes() for name in names.split()),
    "_raw_saved_": lambda: hasattr((_leaf() * 2.0).grad_fn._raw_saved_other, "unpack_hook"),
    "_input_metadata": lambda: list(_softmax()._input_metadata[0].shape) == [2, 3],
    "_sequence_nr": lambda: _softmax()._sequence_nr() < _softmax()._sequence_nr(),
    "_compiled_call_impl": lambda: "_compiled_call_impl" in vars(nn.Module),
    "_torchdynamo_orig_callable": lambda: _in_source("_dynamo/eval_frame.py", "._torchdynamo_orig_callable = "),
    "_guards": lambda: _in_source("_guards.py", "class TracingContext"),
    "_dynamo": lambda: _in_source("compiler/__init__.py", "torch._dynamo"),
    "_foreach_norm": lambda: hasattr(torch, "_foreach_norm"),
    "_python_dispatch": lambda: _in_source("utils/_python_dispatch.py", "class TorchDispatchMode"),
    "_c10d": lambda: _operator("_c10d_functional"),
    "_dtensor": lambda: _operator("_dtensor"),
    "_profiler_enabled": lambda: torch.autograd._profiler_enabled() is False,
    "_frames_up": lambda: "_frames_up" in inspect.signature(torch.jit.script).parameters,
}


def private_names(source: str) -> Iterator[str]:
    """Private names that a module's source uses and does not define."""
    tree = ast.parse(source)
    own, used, texts = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.keyword):
            used.add(node.arg or "")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            used.update(part for name in node.names for part in name.name.split("."))
            used.update((getattr(node, "module", "") or "").split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
            texts.add(node.value)
    used.update(part for text in texts for part in text.split("."))
    return (name for name in used - own if _PRIVATE.fullmatch(name))


def test_private_names_of_pytorch_are_listed(repository: Path) -> None:
    folder = repository / "src" / "watchglass" / "capture" / "pytorch"
    used = {name for path in folder.rglob("*.py") for name in private_names(path.read_text(encoding="utf-8"))}
    assert {"_saved_" if name.startswith("_saved_") else name for name in used} - _OTHERS == set(LISTED)


def test_the_page_gives_the_reason_for_each(repository: Path) -> None:
    page = (repository / "docs" / "pytorch.md").read_text(encoding="utf-8").split("## Private names of PyTorch")[1]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name.removesuffix("_functional") for row in rows for name in re.findall(r"(?<![A-Za-z])_[a-z]\w*", row)}
    assert named == set(LISTED)


@pytest.mark.parametrize("name", LISTED)
def test_pytorch_has_a_listed_name(name: str) -> None:
    assert LISTED[name](), f"PyTorch {torch.__version__} has no {name}: see docs/pytorch.md for what that breaks"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("tensor._base", {"_base"}),
        ("getattr(tensor, '_base')", {"_base"}),
        ("from torch._prims import _thing", {"_prims", "_thing"}),
        ("torch.jit.trace(f, _force=True)", {"_force"}),
        ("class A:\n    def _mine(self):\n        self._other = other._mine", set()),
        ("'a sentence of a _word'", set()),
    ],
)
def test_finds_private_names(source: str, found: set[str]) -> None:
    assert set(private_names(source)) == found
